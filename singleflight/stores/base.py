"""The `Store` protocol: what singleflight needs of a store, and what every store must promise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.errors import SingleflightError
    from singleflight.lease import Busy, Granted, Outcome

RECORD_VERSION = 2
"""Written into every record as ``v``; a record of another version is a `ConfigurationError`."""

RUNS_KEPT = 64
"""How many runs one record remembers; ended ones are forgotten first, oldest first."""

INFINITE = 1 << 30
"""The attempt that a final outcome is recorded under: higher than any real one."""

REMEMBER = 7200.0
"""Seconds for which a record outlives its last use: the longest that a late copy is recognised."""


class Waits(IntEnum):
    """How a claim that asks for the waiting slot waits."""

    PASSED = 0
    """It asks again now and then, and fresh runs may go before it."""
    FIRST = 1
    """It has waited long: its slot is a reservation, and it passes that of another one that has."""
    LISTENING = 2
    """It is told when its time has come, and comes at once: its slot is a reservation that nobody passes."""


class Claim(NamedTuple):
    """A delivery asks for the lease of a key.

    ``token`` is made before the first request, so that a claim whose reply was lost can be replayed.
    ``after`` is None, or the run that the record must still show (``""``: none yet) for the claim to go on
    from it. ``wait_ms`` > 0 asks for the waiting slot, and ``waits`` says how; only a store that is `Waking`
    can tell those who are `Waits.LISTENING`.
    """

    key: str
    run_id: str
    attempt: int
    token: str
    ttl_ms: int
    window_ms: int = 0
    holder: str = ""
    after: str | None = None
    wait_ms: int = 0
    waits: Waits = Waits.PASSED


class Renewal(NamedTuple):
    """A delivery says that it still works.

    ``age_ms`` is the time since the last renewal that succeeded: a missing record is written back only
    while it is younger than ``remember``.
    """

    key: str
    run_id: str
    attempt: int
    token: str
    fence: int
    ttl_ms: int
    started_ms: int = 0
    opens_ms: int = 0
    age_ms: int = 0
    holder: str = ""


class Release(NamedTuple):
    """A delivery is over.

    ``grace_ms`` > 0 shortens the lease instead of ending it. ``again_ms`` > 0 keeps the waiting slot for
    this run's own retry. ``began`` is False if this delivery never started the body of the run: then it is
    taken back, unless an earlier one may have.
    """

    key: str
    run_id: str
    attempt: int
    token: str
    outcome: Outcome
    grace_ms: int = 0
    again_ms: int = 0
    began: bool = True


class Renewed(StrEnum):
    """The answer to a renewal."""

    RENEWED = "renewed"
    RESTORED = "restored"
    """The record was gone (a flush, an empty replica) and has been written back."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Run:
    """One run that a record remembers: its highest attempt, and whether that has ended."""

    run_id: str
    attempt: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Record:
    """All that a store keeps of one key. Times are whole milliseconds of the store's clock, 0 is never."""

    token: str = ""
    run_id: str = ""
    fence: int = 0
    held: bool = False
    expires_ms: int = 0
    ttl_ms: int = 0
    started_ms: int = 0
    opens_ms: int = 0
    outcome: str = ""
    holder: str = ""
    runs: tuple[Run, ...] = ()
    slot: str = ""
    slot_expires_ms: int = 0
    first: bool = False
    refused: int = 0
    """How many claims that did not wait met another run, as far as the store counts them."""
    refused_ms: int = 0
    refused_reason: str = ""
    """When and why the last one was refused."""
    fresh: bool = False
    """The lease was granted to a run that had not begun before, so its holder knows whether it ever has."""
    waiting: int = 0
    """How many stand in the line, see `singleflight.stores.lining`; without any, nobody looks at the line."""
    parked: int = 0
    """How many messages the line keeps; while there are any, the record has no end."""
    queued: int = 0
    """How many of those who wait have not begun, are no message that is lost, and will start."""
    order: int = 0
    """The last one given in the line."""
    call_no: int = 0
    """The last number of a call."""
    line_ms: int = 0
    """The latest time at which the line was changed."""
    moment_ms: int = 0
    """When the line must be looked at next, 0 is never; its index may say earlier."""
    homes: str = ""
    """The homes of those who stand in the line, or have since it was empty; one in a row."""


@dataclass(frozen=True, slots=True)
class Look:
    """A record as `Store.peek` found it, and the store's clock at that moment."""

    record: Record
    now_ms: int
    remaining_ms: int
    """Until the store forgets the record; always positive: no record lives for ever."""


class Store(Protocol):
    """One record per key, changed by few atomic operations that the store decides by its own clock.

    Every implementation is held to this text by `singleflight.testing.StoreContract`. *Live* means held
    and not expired. *Resumed* means that the claiming run is not done and is on its second attempt or is
    remembered in the record: it has started before, so it is never a duplicate.

    On every read, remaining time is cut to the ttl and a start in the future is shifted to now, because
    clocks step back. On every write, the record's own life becomes the latest of now, expiry, window and
    slot, plus ``remember``. No operation checks in Python and acts later.

    Every method may raise `StoreUnavailable` (no answer in time; try again later) or `ConfigurationError`
    (a permanent fault: wrong password, missing right, unknown record version). Repeating a request whose
    reply was lost is always safe and gives the same answer. A request whose numbers or names are out of the
    bounds of `singleflight.stores.bounds` is a `ConfigurationError` too, and changes nothing: what claims say
    comes from messages, and messages from anybody.
    """

    @property
    def remember(self) -> float:
        """Seconds for which an ended run is recognised after the record's last use."""
        ...

    def claim(self, claim: Claim) -> Granted | Busy:
        """Grant the lease, or say who is in the way. The first rule that fits decides.

        1. Live with the same token: the same grant again (a lost reply).
        2. The run is remembered with a higher attempt, or with this one and ended: FINISHED.
        3. Live: SAME_RUN or RUNNING.
        4. Not resumed, and now is not past the window (the record's, or the last start plus the claim's
           own window; an equal instant is refused): WINDOW.
        5. Not resumed, and another run's slot is alive and reserved: RESERVED; unless both have waited long
           (`Waits.FIRST`).
        6. ``after`` given, and the record's run is neither empty, nor this run, nor ``after``: SUPERSEDED.
        7. Granted, with a fence above every earlier one, and at least the clock's microseconds.

        A refusal keeps the slot in order: the run's own slot (not on SAME_RUN or FINISHED) is refreshed if
        it waits, shortened by a reservation only, and cleared if it does not; a free slot is taken if it
        waits and met RUNNING or WINDOW.
        """
        ...

    def renew(self, renewals: Sequence[Renewal]) -> Sequence[Renewed | SingleflightError]:
        """Answer each renewal, in one round trip where the store can; some answers may be errors.

        A missing record is written back (RESTORED) unless the last success is older than ``remember``.
        Another token, a lease that is not held or one that has an outcome is LOST and unchanged.
        Otherwise RENEWED until now + ttl, also when it had lapsed and nobody claimed it.
        Where others could be answered and this one could not, the error is its answer.
        """
        ...

    def release(self, release: Release) -> bool:
        """Record the outcome, whoever holds the lease; end the lease if it is this token's.

        A final outcome ends the run for good, and clears its slot: nobody waits for a run that never comes.
        RETRYING ends this attempt, REQUEUED nothing. With
        ``again_ms`` the own or a free slot is this run's. Returns True if the token was the record's; if
        not, another's lease is left exactly as it is.

        Where the lease ends and the body never ``began``, what the grant has written is taken back: its start
        with the window, and of a REQUEUED run the memory. That goes for a grant that was not resumed only:
        an earlier delivery of a resumed run may have begun, whatever this one knows.
        """
        ...

    def queue(self, key: str, run_id: str, *, ttl_ms: int, running_too: bool) -> Busy | None:
        """Take the waiting slot for a run that has just been published; None means it is taken.

        FINISHED if the run has already started, QUEUED if another live slot exists, RUNNING if
        ``running_too`` and another run holds the lease.
        """
        ...

    def unqueue(self, key: str, run_id: str) -> bool:
        """Clear the waiting slot if it is this run's; True if it was."""
        ...

    def evict(self, key: str) -> bool:
        """Free the key by force, whatever blocks it: the lease, the window, the waiting slot.

        A tombstone is left, so that a holder learns that it lost its lease. Fence and remembered runs stay;
        a run that waited is judged when it arrives, as one without the slot. True if there was a record.
        """
        ...

    def peek(self, key: str) -> Look | None:
        """Read a record without changing it."""
        ...

    def close(self) -> None:
        """Close connections; the store may be used again afterwards."""
        ...
