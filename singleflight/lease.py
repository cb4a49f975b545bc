"""What a lease is: who holds it, why a claim was refused, and how long the holder may trust it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from singleflight.errors import ConfigurationError, LeaseLost
from singleflight.identity import message_id_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self


def monotonic() -> float:
    """Return seconds on a clock that never steps and, on Linux, goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _BOOTTIME else time.monotonic()


# Plain monotonic time stands still during suspend, so a woken holder would trust a dead lease.
_BOOTTIME = hasattr(time, "CLOCK_BOOTTIME")


class Reason(StrEnum):
    """Why a claim or a place in the waiting slot was refused."""

    FINISHED = "finished"
    """This run has ended (or a later attempt of it has started): the message is a late copy."""
    SAME_RUN = "same_run"
    """Another delivery of this very run is alive."""
    RUNNING = "running"
    """Another run holds the lease."""
    WINDOW = "window"
    """The last start is less than ``window`` ago."""
    RESERVED = "reserved"
    """A run that has waited too long goes first."""
    SUPERSEDED = "superseded"
    """Somebody else went on from the tick that this claim builds on."""
    QUEUED = "queued"
    """Another run already waits."""


class Outcome(StrEnum):
    """How a delivery ended, as told to the store on release."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRYING = "retrying"
    """This attempt ended and its successor is published."""
    REQUEUED = "requeued"
    """The same message will come back."""

    @property
    def final(self) -> bool:
        """True if no delivery of the run may start any more."""
        return self in (Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELLED)


@lru_cache(maxsize=256)
def _encoded(holder: Holder) -> str:
    """Return the text of a holder; a process claims for the same few tasks again and again."""
    return json.dumps(holder, ensure_ascii=False, separators=(",", ":"))


@cache
def _hostname() -> str:
    from socket import gethostname  # noqa: PLC0415 - half as slow to load as all of this package

    return gethostname()


class Holder(NamedTuple):
    """Who holds a lease, for people; nothing is decided by it."""

    task: str
    host: str
    pid: int

    @classmethod
    def here(cls, task: str) -> Holder:
        """Return this process as the holder of a task's lease."""
        return cls(task, _hostname(), os.getpid())

    def encode(self) -> str:
        """Return the text that the store keeps."""
        return _encoded(self)

    @classmethod
    def decode(cls, text: str) -> Holder | None:
        """Read what `encode` wrote; None if there is no holder or the text is foreign."""
        try:
            task, host, pid = json.loads(text)
            return cls(str(task), str(host), int(pid))
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"{self.task} on {self.host}, pid {self.pid}"


class Granted(NamedTuple):
    """The store's yes to a claim.

    ``fence`` grows with every grant of the key. ``started_ms`` and ``opens_ms`` (store's clock, epoch
    milliseconds) are the start of the run and the end of its window; a renewal carries them so that
    a record lost in a flush can be written back.
    """

    fence: int
    took_over: bool
    started_ms: int
    opens_ms: int


@dataclass(frozen=True, slots=True)
class Busy:
    """The store's no to a claim: a value, not an error.

    ``run_id`` is the run that is in the way (or the last one), ``ended`` says that this run is known to
    have ended; ``resumed`` says that the *claiming* run has started before and has not ended, so it is
    never a duplicate; ``waiting`` is the run in the waiting slot, perhaps the claiming run itself.
    """

    reason: Reason
    run_id: str
    retry_after: float
    """Seconds until the obstacle lapses if nothing else happens."""
    holder: Holder | None = None
    since: float | None = None
    """When the run in the way started: epoch seconds on the store's clock."""
    resumed: bool = False
    waiting: str = ""
    ended: bool = False

    @property
    def ahead(self) -> str:
        """The run that has the key, or goes next: one that has reserved it is met like one that runs."""
        return self.waiting if self.reason is Reason.RESERVED else self.run_id

    def __str__(self) -> str:
        who = f" by {self.holder}" if self.holder and self.reason is not Reason.RESERVED else ""
        until = f"{self.retry_after:.1f} s"
        free = {
            Reason.RUNNING: f", free in {until} if it has died",
            Reason.SAME_RUN: f", free in {until} if it has died",
            Reason.WINDOW: f", next start in {until}",
            Reason.RESERVED: f", free in at most {until}",
            Reason.QUEUED: f", free in at most {until}",
        }
        return f"{self.reason}: run {message_id_of(self.ahead) or '(none)'}{who}{free.get(self.reason, '')}"


class _Keeper(Protocol):
    """What a lease needs of whoever keeps it; `singleflight.leases.keeper.Keeper` is the one there is."""

    @property
    def clock(self) -> Callable[[], float]: ...
    def renew_now(self, lease: Lease) -> None: ...
    def give_back(self, lease: Lease, outcome: Outcome, *, grace: float = 0, again: float = 0) -> bool: ...


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
        self,
        keeper: _Keeper,
        granted: Granted,
        *,
        key: str,
        task: str,
        run_id: str,
        attempt: int,
        token: str,
        ttl: float,
        holder: Holder,
        sent: float,
        max_hold: float | None = None,
    ) -> None:
        """Made by `Leases.claim`; ``sent`` is the keeper's time just before the claim went out."""
        self._keeper = keeper
        self._over = False
        self.granted = granted
        self.key, self.task, self.run_id, self.attempt, self.token = key, task, run_id, attempt, token
        self.fence, self.ttl, self.holder, self.max_hold = granted.fence, ttl, holder, max_hold
        self.held_since = sent
        self.trusted_until = sent + ttl - margin(ttl)
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
                f"{self.task}: run {self.run_id} no longer holds {self.key} (fence {self.fence}); "
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
