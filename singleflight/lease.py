"""What a lease is, and how long its holder may trust it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from singleflight.answers import Busy, Granted, Holder, Outcome, Reason
from singleflight.errors import ConfigurationError, LeaseLost
from singleflight.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["Busy", "Granted", "Holder", "Lease", "Outcome", "Reason", "margin", "monotonic"]


def monotonic() -> float:
    """Return seconds on a clock that never steps and, on Linux, goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _BOOTTIME else time.monotonic()


# Plain monotonic time stands still during suspend, so a woken holder would trust a dead lease.
_BOOTTIME = hasattr(time, "CLOCK_BOOTTIME")


class _Keeper(Protocol):
    """What a lease needs of whoever keeps it; `singleflight.leases.keeper.Keeper` is the one there is."""

    @property
    def clock(self) -> Callable[[], float]: ...
    def renew_now(self, lease: Lease) -> None: ...
    def give_back(self, lease: Lease, outcome: Outcome, *, grace: float = 0, again: float = 0) -> bool: ...


class _Asked(Protocol):
    """What a lease was asked for with: a `singleflight.leases.claiming.Request`."""

    @property
    def key(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def token(self) -> str: ...
    @property
    def ttl(self) -> float: ...
    @property
    def max_hold(self) -> float | None: ...


class Lease:
    """The time-bounded right of one delivery to run a key, renewed in the background until released.

    The holder trusts it until *sending of the last successful renewal + ttl - margin*, on its own
    monotonic clock; from then on `held` is false, whatever the network does.
    """

    __slots__ = (
        "_keeper",
        "_over",
        "attempt",
        "began",
        "fence",
        "granted",
        "held_since",
        "holder",
        "key",
        "max_hold",
        "run_id",
        "task",
        "token",
        "trusted_until",
        "ttl",
    )

    def __init__(
        self, keeper: _Keeper, granted: Granted, asked: _Asked, *, holder: Holder, sent: float
    ) -> None:
        """Made by `Leases.claim`; ``sent`` is the keeper's time just before the claim went out."""
        self._keeper = keeper
        self._over = False
        self.granted = granted
        self.key, self.task, self.run_id, self.attempt = asked.key, asked.task, asked.run_id, asked.attempt
        self.token, self.ttl, self.max_hold = asked.token, asked.ttl, asked.max_hold
        self.fence, self.holder, self.held_since = granted.fence, holder, sent
        self.trusted_until = sent + self.ttl - margin(self.ttl)
        self.began = True
        """False until a body has started, for those who must give back a window they did not use."""

    @property
    def held(self) -> bool:
        """True while the store's word still covers this delivery; local, no round trip."""
        return not self._over and self._keeper.clock() < self.trusted_until

    @property
    def expires_in(self) -> float:
        """Seconds for which the lease can be trusted without another renewal; 0.0 when it cannot."""
        return 0.0 if self._over else max(0.0, self.trusted_until - self._keeper.clock())

    def check(self) -> None:
        """Return if the lease is held; local, no round trip.

        Raises:
            LeaseLost: if it is not.
        """
        if not self.held:
            raise LeaseLost(
                f"{printable(self.task)}: run {printable(self.run_id)} no longer holds {printable(self.key)} "
                f"(fence {self.fence}); "
                "another run may have started: stop, and write nothing that the fence does not guard"
            )

    def ensure(self, seconds: float) -> None:
        """Return if the lease is good for ``seconds`` more, renewing it at once if that is needed.

        Args:
            seconds: from 0 to the ttl less two margins, each a tenth of it and at most a second: no lease is
                trusted to its last moment, and a renewal takes its time.

        Raises:
            LeaseLost: if it cannot be had for that long; `held` says whether it is held for less.
            ConfigurationError: if ``seconds`` is more than any renewal can give.
        """
        most = self.ttl - 2 * margin(self.ttl)
        if not 0 <= seconds <= most:  # written so that NaN fails too
            raise ConfigurationError(
                f"ensure({seconds!r}) is not from 0 to {most:g} s, which is all that ttl={self.ttl!r} can "
                "give; declare a longer ttl"
            )
        self.check()
        before = 0.0
        for _ in range(2):  # an answer may have been slow once; without any, waiting for another is no use
            if self.expires_in < seconds and self.trusted_until > before:
                before = self.trusted_until
                self._keeper.renew_now(self)
        if (left := self.expires_in) < seconds:
            raise LeaseLost(
                f"{self.task}: {self.key} could not be renewed for {seconds} s more; "
                + (f"it is held for {left:.1f} s" if left else "it is not held any more")
            )

    def release(self, outcome: Outcome = Outcome.FINISHED, *, grace: float = 0, again: float = 0) -> bool:
        """Give the lease back and record how the run ended; safe to call twice and from any thread.

        ``grace`` (seconds) shortens the lease instead of ending it, for a body that is being killed.
        ``again`` (seconds) keeps the waiting slot for this run's own retry. Never raises for a store
        that is away: the keeper goes on trying until the lease has lapsed.

        Returns:
            True if the lease was still ours, False if it had been lost or released, or the store is away.
        """
        return self._keeper.give_back(self, outcome, grace=grace, again=again)

    def renewed(self, sent: float) -> None:
        """Note a renewal whose request went out at ``sent`` (on the keeper's clock)."""
        self.trusted_until = max(self.trusted_until, sent + self.ttl - margin(self.ttl))

    def end(self) -> bool:
        """Note that this delivery no longer holds; True the first time."""
        first, self._over = not self._over, True
        return first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(Outcome.FINISHED if kind is None else Outcome.FAILED)

    def __repr__(self) -> str:
        return f"<Lease {self.key} run={self.run_id} fence={self.fence} held={self.held}>"


def margin(ttl: float) -> float:
    """Return how many seconds before the store's expiry the holder stops trusting a lease.

    A tenth of ``ttl``, at most one second: it covers the reply's way back and clock rates that differ.
    """
    return min(ttl / 10, 1.0)


def renewal_interval(ttl: float) -> float:
    """Return how many seconds lie between two renewals: two of them may fail before a lease lapses."""
    return ttl / 3
