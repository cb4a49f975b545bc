"""What every operation on a line begins and ends with: who is there, who is called, when to look again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from singleflight.stores import record_rules as rules
from singleflight.stores.base import Record
from singleflight.stores.line import (
    HAIL_MS,
    HAND_MS,
    NEVER,
    STEP_MS,
    call_lasts,
    is_queued,
    placed,
    settled,
)
from singleflight.stores.lining import MAX_CALLED, MAX_CALLED_BYTES, Called, Kind, Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.stores.line import Entry, Line

BY_ITSELF = (Kind.LISTENING, Kind.COUNTING)
"""Those who need no message to be called."""


@dataclass(slots=True)
class Step:
    """One operation on one line, until `finish`."""

    key: str
    found: Record | None
    line: Line
    now_us: int
    homes: Sequence[str] = ()
    record: Record = field(init=False)
    called: list[Called] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """Listeners that have been called."""
    hailed: set[str] = field(default_factory=set)
    size: int = 0

    def __post_init__(self) -> None:
        self.record = self.found or Record()

    @property
    def now_ms(self) -> int:
        """The store's clock in milliseconds."""
        return self.now_us // 1000

    @property
    def full(self) -> bool:
        """Whether the answer takes no more messages."""
        return len(self.called) >= MAX_CALLED or self.size >= MAX_CALLED_BYTES

    def begin(self) -> None:
        """See the record and the line as they are now: what has lapsed, what is over."""
        self.record = rules.repaired(self.record, self.now_ms)
        if not self.record.waiting:
            # A record that was lost, or whose life was over before a dead listener's entry was seen again.
            self._recount()
        if not self.record.waiting:
            return
        if self.now_ms < self.record.line_ms - STEP_MS:
            self.line.rewind()
        for entry in self.line.due(self.now_ms):
            now = settled(entry, self.now_ms)
            if now is None:
                self.remove(entry)
                continue
            if now.standing is Standing.OUTSIDE and not now.until_ms:
                # Who was woken before its look keeps the moment that it was given.
                now = replace(now, moment_ms=min(now.moment_ms, entry.moment_ms))
            if now != entry:
                self.put(now, entry)

    def put(self, entry: Entry, before: Entry | None = None, message: bytes | None = None) -> None:
        """Write an entry; ``before`` is what stood there."""
        self._count(before, -1)
        self._count(entry, 1)
        self.line.put(entry, message)

    def remove(self, entry: Entry) -> None:
        """Take an entry out."""
        self._count(entry, -1)
        self.line.remove(entry)

    def _recount(self) -> None:
        """Find out what the record does not know of its line."""
        for entry in self.line.listed():
            self.put(entry)
            homes = {*self.record.homes.split("\n"), entry.home} - {""}
            order = max(self.record.order, entry.order)
            self.record = replace(self.record, homes="\n".join(sorted(homes)), order=order)

    def _count(self, entry: Entry | None, by: int) -> None:
        if entry is not None:
            self.record = replace(
                self.record,
                waiting=self.record.waiting + by,
                parked=self.record.parked + (by if entry.size else 0),
                queued=self.record.queued + (by if is_queued(entry) else 0),
            )

    @property
    def changed(self) -> Record | None:
        """What is to be written: nothing, where there was nothing and nobody waits."""
        return None if self.found is None and not self.record.waiting else self.record

    def number(self) -> int:
        """Return a call's number, made as a fence is, so that none comes twice, even after a flush."""
        call_no = max(self.record.call_no + 1, self.record.fence + 1, self.now_us)
        self.record = replace(self.record, call_no=call_no)
        return call_no


def room(step: Step) -> int:
    """Return how many more may be called: so many may hold the key, so many do, so many are called."""
    return 1 - rules.live(step.record, step.now_ms) - len(step.line.of(Standing.CALLED))


def fits(record: Record, entry: Entry, now_ms: int) -> bool:
    """Say whether the window lets an entry start."""
    return entry.begun or now_ms > rules.opens(record, entry.window_ms)


def finish(step: Step, *, exact: bool = False) -> tuple[Called, ...]:
    """End an operation: call, and note when the line must be looked at next."""
    if step.record.waiting or exact or step.record.homes:
        call(step)
        touch(step, exact=exact)
    return tuple(step.called)


def call(step: Step) -> None:
    """Call whom there is room for, in order, and publish those outside who are due."""
    hailed = [entry for entry in step.line.of(Standing.HAILED) if entry.home in step.homes]
    for entry in (*hailed, *step.line.due(step.now_ms)):
        if entry.size and entry.standing in (Standing.HAILED, Standing.OUTSIDE):
            _publish_outside(step, entry)
    for entry in step.line.of(Standing.CALLED):
        if entry.hailed and entry.home in step.homes:
            _hand(step, entry)
    while not step.full and room(step) > 0:
        ready = [step.line.first(begun=begun) for begun in (True, False)]
        fitting = [entry for entry in ready if entry is not None and fits(step.record, entry, step.now_ms)]
        if not fitting:
            return
        _hand(step, min(fitting, key=lambda entry: entry.order))


def _publish_outside(step: Step, entry: Entry) -> None:
    """Publish one who joins and is to look, or one who is ending."""
    if rules.live(step.record, step.now_ms) and step.record.run_id == entry.run_id:
        step.put(replace(entry, standing=Standing.OUTSIDE, moment_ms=step.record.expires_ms), entry)
    elif entry.home not in step.homes:
        step.put(replace(entry, standing=Standing.HAILED, moment_ms=entry.ends_ms), entry)
        step.hailed.add(entry.home)
    elif not step.full:
        _hand(step, entry)


def _hand(step: Step, entry: Entry) -> None:
    """Call an entry: give its message to whoever asks, or hail its home, or tell who listens."""
    now_ms = step.now_ms
    if entry.kind in BY_ITSELF:
        calls = entry.calls + 1
        until_ms = now_ms + call_lasts(calls)
        if entry.kind is Kind.COUNTING:
            until_ms = max(entry.ends_ms, now_ms + 1)
        else:
            step.told.append(entry.run_id)
        after = replace(entry, calls=calls, until_ms=until_ms)
    elif entry.home in step.homes:
        call_no = step.number()
        message = step.line.message(entry.run_id)
        step.called.append(Called(step.key, entry.run_id, call_no, entry.order, entry.home, message))
        step.size += len(message)
        after = replace(
            entry,
            calls=entry.calls + 1,
            call_no=call_no,
            until_ms=now_ms + HAND_MS,
            due_ms=min(entry.due_ms, now_ms),
            in_hand=True,
            hailed=False,
        )
    else:
        step.hailed.add(entry.home)
        after = replace(entry, until_ms=now_ms + HAIL_MS, hailed=True)
    step.put(placed(after, now_ms), entry)


def touch(step: Step, *, exact: bool) -> None:
    """Note when the line must be looked at next, for every home that waits in it."""
    record, now_ms = step.record, step.now_ms
    homes = record.homes.split("\n") if record.homes else []
    moment_ms = _next_moment(step)
    if not record.waiting:
        for home in homes or step.homes:
            step.line.index(home, NEVER, exact=True)
        step.record = replace(record, homes="", moment_ms=NEVER)
        return
    earlier = moment_ms and (not record.moment_ms or moment_ms < record.moment_ms)
    for home in homes:
        own = exact and home in step.homes
        if home in step.hailed:
            step.line.index(home, 1, exact=False)
        elif own or earlier:
            step.line.index(home, moment_ms, exact=own)
    step.record = replace(record, moment_ms=moment_ms, line_ms=now_ms)


def _next_moment(step: Step) -> int:
    record, moments = step.record, [step.line.next_moment()]
    if rules.live(record, step.now_ms):
        moments.append(record.expires_ms)
    elif room(step) > 0:
        if step.line.first(begun=True) is not None:
            moments.append(step.now_ms)
        if (fresh := step.line.first(begun=False)) is not None:
            moments.append(max(rules.opens(record, fresh.window_ms) + 1, step.now_ms))
    return min((moment for moment in moments if moment), default=NEVER)
