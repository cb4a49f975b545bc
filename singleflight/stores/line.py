"""The line of a key as stores that decide in Python see it: its entries, and when something is due; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from singleflight.stores.lining import Kind, Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

HAND_MS = 5000
"""How long a call lasts whose message is in hand."""

HAIL_MS = 2000
"""How long a call lasts that a home has not taken yet."""

CALL_MS = 2000
"""Half of how long the first call lasts once its message was sent; each further one twice as long."""

LONGEST_MS = 60_000
"""The longest call of a message, passing over, and distance of looks."""

PASS_MS = 1000
"""How long an entry is first passed over."""

STEP_MS = 1000
"""A clock that went back by more than this has been set back: everything is looked at again."""

NEVER = 0
"""The moment of an entry that nothing will happen to by itself."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One run that waits. Times are milliseconds of the store's clock, 0 is never."""

    run_id: str
    attempt: int
    order: int
    kind: Kind = Kind.PARKED
    home: str = ""
    window_ms: int = 0
    begun: bool = False
    size: int = 0
    """Bytes of the message that is kept; 0 if there is none."""
    since_ms: int = 0
    due_ms: int = 0
    """When one who joins looks next."""
    look_ms: int = 0
    """How long it waits between two looks."""
    until_ms: int = 0
    """The end of its call."""
    call_no: int = 0
    calls: int = 0
    in_hand: bool = False
    """Its call goes to a message that has not been sent yet."""
    hailed: bool = False
    passed: int = 0
    """How often in a row it was passed over."""
    away_ms: int = 0
    """Until when it is passed over."""
    ends_ms: int = 0
    life_ms: int = 0
    ending: bool = False
    standing: Standing = Standing.READY
    moment_ms: int = NEVER
    """When it must be looked at next."""


class Line(Protocol):
    """What the rules need of the line of one key while nobody else changes it; all but `due` is exact."""

    def find(self, run_id: str) -> Entry | None:
        """Return the entry of a run."""
        ...

    def first(self, *, begun: bool) -> Entry | None:
        """Return the READY entry of the lowest order among those that have begun, or have not."""
        ...

    def of(self, standing: Standing) -> Sequence[Entry]:
        """Return the entries with a standing other than READY; of HAILED ones some will do."""
        ...

    def listed(self, most: int | None = None) -> Sequence[Entry]:
        """Return the first of all entries by order."""
        ...

    def due(self, now_ms: int) -> Sequence[Entry]:
        """Return entries whose moment has come; of many some will do."""
        ...

    def next_moment(self) -> int:
        """Return the earliest moment of all, NEVER if there is none."""
        ...

    def message(self, run_id: str) -> bytes:
        """Return the message that is kept for a run."""
        ...

    def put(self, entry: Entry, message: bytes | None = None) -> None:
        """Write an entry, and its message if one is given; an entry of size 0 has none any more."""
        ...

    def remove(self, entry: Entry) -> None:
        """Take an entry and its message out of the line."""
        ...

    def wake(self) -> None:
        """Make the moment of every entry that joins 1, which is past."""
        ...

    def rewind(self) -> None:
        """Make the moment of every entry 1: a clock went back."""
        ...

    def index(self, home: str, moment_ms: int, *, exact: bool) -> None:
        """Note when the key must be looked at for a home; unless ``exact``, only if that is earlier.

        NEVER takes the key out of the index.
        """
        ...


class NoLine:
    """A line in which nobody waits: the rules ask it, and have nobody to put, remove or publish."""

    def find(self, run_id: str) -> None:
        """See `Line.find`."""

    def first(self, *, begun: bool) -> None:
        """See `Line.first`."""

    def of(self, standing: Standing) -> Sequence[Entry]:
        """See `Line.of`."""
        del standing
        return ()

    def listed(self, most: int | None = None) -> Sequence[Entry]:
        """See `Line.listed`."""
        del most
        return ()

    def due(self, now_ms: int) -> Sequence[Entry]:
        """See `Line.due`."""
        del now_ms
        return ()

    def next_moment(self) -> int:
        """See `Line.next_moment`."""
        return NEVER

    def message(self, run_id: str) -> bytes:
        """See `Line.message`."""
        raise NotImplementedError(run_id)

    def put(self, entry: Entry, message: bytes | None = None) -> None:
        """See `Line.put`."""
        raise NotImplementedError

    def remove(self, entry: Entry) -> None:
        """See `Line.remove`."""
        raise NotImplementedError

    def wake(self) -> None:
        """See `Line.wake`."""

    def rewind(self) -> None:
        """See `Line.rewind`."""

    def index(self, home: str, moment_ms: int, *, exact: bool) -> None:
        """See `Line.index`."""


def call_lasts(calls: int) -> int:
    """Return for how long the calls-th call in a row is kept, once its message was sent."""
    return min(CALL_MS * (1 << min(calls, 10)), LONGEST_MS)


def passed_over(passed: int) -> int:
    """Return for how long an entry is passed over that has been so already."""
    return min(PASS_MS * (1 << min(passed, 10)), LONGEST_MS)


def clamped(entry: Entry, now_ms: int) -> Entry:
    """Return the entry with no time further ahead than it can be."""
    longest = max(HAND_MS, entry.life_ms if entry.kind is Kind.COUNTING else call_lasts(entry.calls))
    return replace(
        entry,
        until_ms=min(entry.until_ms, now_ms + longest),
        away_ms=min(entry.away_ms, now_ms + LONGEST_MS),
        due_ms=min(entry.due_ms, now_ms + entry.look_ms),
        ends_ms=min(entry.ends_ms, now_ms + entry.life_ms),
    )


def settled(entry: Entry, now_ms: int) -> Entry | None:
    """Return the entry as it is now: its call may have lapsed; None if its life is over."""
    entry = clamped(entry, now_ms)
    if entry.ends_ms and entry.ends_ms <= now_ms:
        return None
    if entry.until_ms and entry.until_ms <= now_ms:
        if entry.in_hand or entry.hailed:
            away_ms = entry.until_ms + passed_over(entry.passed)
            entry = replace(entry, away_ms=away_ms, passed=entry.passed + 1)
        entry = replace(entry, until_ms=0, in_hand=False, hailed=False)
    return placed(entry, now_ms)


def placed(entry: Entry, now_ms: int) -> Entry:
    """Return the entry with the standing that its times give it, and its next moment."""
    standing, moment_ms = _standing(entry, now_ms)
    if entry.ends_ms:
        moment_ms = min(moment_ms or entry.ends_ms, entry.ends_ms)
    return replace(entry, standing=standing, moment_ms=moment_ms)


def _standing(entry: Entry, now_ms: int) -> tuple[Standing, int]:
    called = entry.until_ms > now_ms
    if entry.ending or entry.kind is Kind.JOINING:
        if not entry.size:
            return Standing.OUTSIDE, NEVER
        due_ms = 1 if entry.ending else entry.due_ms
        return Standing.OUTSIDE, entry.until_ms if called else max(due_ms, entry.away_ms, 1)
    if called:
        return Standing.CALLED, entry.until_ms
    if not entry.size and entry.kind is Kind.PARKED:
        return Standing.AWAY, NEVER
    if entry.away_ms > now_ms:
        return Standing.RESTING, entry.away_ms
    return Standing.READY, NEVER


def is_queued(entry: Entry) -> bool:
    """Say whether another run need not be published, because this one will start."""
    return not entry.begun and entry.standing in (Standing.READY, Standing.CALLED, Standing.RESTING)
