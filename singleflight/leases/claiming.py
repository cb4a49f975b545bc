"""Claim, keep, give back: what the integrations and plain code share."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.events import Kind, Notify, about
from singleflight.lease import Busy, Holder, Lease, Outcome, Reason
from singleflight.leases.breaker import Breaker
from singleflight.leases.keeper import process_keeper
from singleflight.leases.releasing import release_of
from singleflight.stores.base import Claim, Waits
from singleflight.stores.lining import Lined
from singleflight.stores.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.leases.calling import Calling
    from singleflight.stores.base import Store
    from singleflight.stores.lining import Wait

RETRACT = 60.0
"""Seconds for which a claim that got no answer is being taken back: an outage must not pile them up."""


class Request(NamedTuple):
    """What a delivery asks for, before its token is minted; durations in seconds."""

    key: str
    task: str
    run_id: str
    token: str
    attempt: int = 0
    ttl: float = 30.0
    window: float = 0.0
    after: str | None = None
    wait: float = 0.0
    waits: Waits = Waits.PASSED
    max_hold: float | None = None
    returning: bool = False
    """The run may have begun before: its window is not to be given back."""
    call_no: int = 0
    order: int = 0
    """What its message says of its place in the line, see `singleflight.stores.lining.Arrival`."""


class Leases:
    """Claims leases in one store and hands them to this process's keeper."""

    def __init__(self, store: Store, notify: Notify | None = None, calling: Calling | None = None) -> None:
        """Use a store, its line if there is ``calling`` and, besides the log, its listeners."""
        self.store = store
        self.notify = notify or Notify()
        self.calling = calling
        self.breaker = Breaker()
        self.releasing = store if calling is None else calling.releasing
        """The store, for those who release."""

    @property
    def lines(self) -> bool:
        """Whether those who are refused wait in a line: not while a store that must be asked is away."""
        calling = self.calling
        try:
            return calling is not None and self.breaker.ask(lambda: calling.lines)
        except StoreUnavailable:
            return False

    def claim(
        self,
        request: Request,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        owner: Callable[[], object] | None = None,
        anyway: bool = False,
    ) -> Lease | Busy:
        """Ask the store once: a `Lease` that is being renewed, or why not.

        A store that has failed rests (see `Breaker`), unless it is to be asked ``anyway``.

        Raises:
            StoreUnavailable: if the store does not answer, or rests after a failure.
            ConfigurationError: if it never will.
        """
        if not anyway:
            self.breaker.pass_through()
        return self._claim(request, None, on_lost, owner)[0]

    def park(
        self,
        request: Request,
        wait: Wait,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        owner: Callable[[], object] | None = None,
    ) -> tuple[Lease | Busy, int]:
        """Claim once more, and wait in the line if that is refused; also return the order in the line.

        Raises:
            StoreUnavailable, ConfigurationError: as `claim`.
        """
        self.breaker.pass_through()
        return self._claim(request, wait, on_lost, owner)

    def _claim(
        self,
        request: Request,
        wait: Wait | None,
        on_lost: Callable[[Lease], None] | None,
        owner: Callable[[], object] | None,
    ) -> tuple[Lease | Busy, int]:
        keeper, holder = process_keeper(), Holder.here(request.task)
        keeper.prepare()
        sent = keeper.clock()
        try:
            answer, called, order = self._ask(_claim(request, holder), request, wait)
            self.breaker.answered()
            if isinstance(answer, Busy):
                result: Lease | Busy = answer
            else:
                result = Lease(keeper, answer, request, holder=holder, sent=sent)
                keeper.hold(result, self.releasing, self.notify, on_lost=on_lost, owner=owner)
                kind = Kind.TOOK_OVER if answer.took_over else Kind.GRANTED
                if self.notify.heeds(kind):
                    self.notify(about(request, kind, fence=answer.fence))
            if called and self.calling is not None:
                self.calling.publish(called)
        except ConfigurationError:
            raise
        except StoreUnavailable as error:
            self.breaker.failed(error)
            self._retract(request)
            self._tell_outage(request, error)
            raise
        except BaseException:
            self._retract(request)
            raise
        return result, order

    def _ask(self, claim: Claim, request: Request, wait: Wait | None) -> Lined:
        if self.calling is None or not self.calling.lines:
            return Lined(self.store.claim(claim))
        return self.calling.claim(claim, request.call_no, request.order, wait)

    def peek(self, request: Request) -> View:
        """Look at a key that is about to be claimed.

        Raises:
            StoreUnavailable: as `claim`.
        """
        try:
            return View(self.breaker.ask(lambda: self.store.peek(request.key)))
        except StoreUnavailable as error:
            self._tell_outage(request, error)
            raise

    def _tell_outage(self, request: Request, error: StoreUnavailable) -> None:
        if self.breaker.is_news():
            self.notify(about(request, Kind.STORE_ERROR, str(error)))

    def disown(self, request: Request, outcome: Outcome, *, grace: float = 0, began: bool = True) -> None:
        """Have the keeper release a lease for a process that cannot do it itself; returns at once."""
        release = release_of(request, outcome, grace=grace, began=began)
        process_keeper().send(release, self.releasing, timeout=request.ttl)

    def _retract(self, request: Request) -> None:
        """Take back a claim whose answer nobody heard: it may have been granted all the same."""
        release = release_of(request, Outcome.REQUEUED, began=request.returning)
        process_keeper().send(release, self.releasing, timeout=min(request.ttl, RETRACT))

    def tell(self, kind: Kind, request: Request, busy: Busy, *, delay: float | None = None) -> None:
        """Report what became of a refused claim."""
        holder = busy.holder if busy.holds else None  # else those of the run before
        since = busy.since if busy.holds or busy.reason is Reason.WINDOW else None
        age = None if since is None else max(0.0, time.time() - since)
        self.notify(about(request, kind, str(busy.reason), holder=holder, age=age, delay=delay))


def new_token() -> str:
    """Return a random token for one delivery, made before its first request to the store."""
    return os.urandom(16).hex()


def _claim(request: Request, holder: Holder) -> Claim:
    return Claim(
        key=request.key,
        run_id=request.run_id,
        attempt=request.attempt,
        token=request.token,
        ttl_ms=round(request.ttl * 1000),
        window_ms=round(request.window * 1000),
        holder=holder.encode(),
        after=request.after,
        wait_ms=round(request.wait * 1000),
        waits=request.waits,
    )
