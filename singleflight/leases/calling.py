"""Whom a store calls: published by the process that got the answer, once its own part is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from singleflight.errors import ConfigurationError
from singleflight.leases.breaker import Breaker
from singleflight.log import logger, struck
from singleflight.stores.lining import Arrival, Lining

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight.stores.base import Claim, Release, Store
    from singleflight.stores.lining import Called, Lined, Swept, Wait

FAILURES = 2
"""How many messages in a row that cannot be published end a round: one may be its own fault."""


class Calling:
    """The line of one store, for a process that can publish for one home.

    Args:
        store: a store that has a line.
        home: see `singleflight.stores.lining.Arrival`.
        publish: returns once the broker has confirmed a called message.

    Raises:
        ConfigurationError: if the store has no line.
    """

    def __init__(self, store: Store, home: str, publish: Callable[[Called], None]) -> None:
        if not isinstance(store, Lining):
            raise ConfigurationError(
                f"{type(store).__name__} keeps no line for those who wait; write waiting='countdown'"
            )
        self.home = home
        self._line: Lining = store
        self._publish = publish
        self._outage = Breaker()
        self.releasing = cast("Store", _Releasing(store, self))
        """The store, for those who release: whom that calls is published."""

    @property
    def lines(self) -> bool:
        """Whether the store can keep lines where it is."""
        return self._line.lines

    def claim(self, claim: Claim, call_no: int, order: int, wait: Wait | None) -> Lined:
        """Claim, and if there is ``wait`` and that is refused, wait in the line; publishes nothing yet."""
        arrival = Arrival(call_no, order, (self.home,))
        if wait is None:
            return self._line.claim_in_line(claim, arrival)
        return self._line.park(claim, arrival, wait)

    def release(self, release: Release) -> bool:
        """Release, and publish whom that calls."""
        released = self._line.release_in_line(release, (self.home,))
        self.publish(released.called)
        return released.ours

    def leave(self, key: str, run_id: str) -> None:
        """Let a run wait no longer, and publish whom that calls."""
        self.publish(self._line.leave(key, run_id, (self.home,)))

    def sweep(self) -> Swept:
        """Return whom the store has called by now; to be published by whoever asks."""
        return self._line.sweep((self.home,))

    def publish(self, called: Sequence[Called]) -> None:
        """Publish what has been called; what cannot be lapses, and is called again by a sweep."""
        failures = 0
        for one in called:
            try:
                self._publish(one)
                self._line.sent(one.key, one.run_id, one.call_no)
            except Exception as error:
                if struck(error):
                    raise
                failures += 1
                self._outage.failed(error)
                if self._outage.is_news():
                    logger.warning("singleflight: what was called is called again later: %r", error)
                if failures == FAILURES:
                    return
            else:
                self._outage.answered()
                failures = 0


class _Releasing:
    """A store whose releases publish; all else is the store's own."""

    def __init__(self, store: Store, calling: Calling) -> None:
        self._store, self._calling = store, calling

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def release(self, release: Release) -> bool:
        return (self._calling if self._calling.lines else self._store).release(release)

    def unqueue(self, key: str, run_id: str) -> bool:
        if self._calling.lines:
            self._calling.leave(key, run_id)
        return self._store.unqueue(key, run_id)
