"""What each operation makes of a line: the rules of `singleflight.stores.lining.Lining`, over values.

A store gives each a record, a `Line` that nobody else can change meanwhile, and its clock; it gets the record
to write (None: write nothing) and the answer. What the line is told to write must be written with the record
or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from singleflight.lease import Granted, Outcome, Reason
from singleflight.stores import record as rules
from singleflight.stores.base import Record
from singleflight.stores.line import (
    HAIL_MS,
    HAND_MS,
    LONGEST_MS,
    NEVER,
    STEP_MS,
    Entry,
    Line,
    call_lasts,
    is_queued,
    placed,
    settled,
)
from singleflight.stores.lining import (
    MAX_CALLED,
    MAX_CALLED_BYTES,
    Called,
    Kind,
    Lined,
    Released,
    Standing,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.stores.base import Claim, Release
    from singleflight.stores.lining import Arrival, Wait

BEHIND_ALL = rules.ENDLESS_MS
"""The order of a run that has none."""

_BY_ITSELF = (Kind.LISTENING, Kind.COUNTING)
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


@dataclass(slots=True)
class Place:
    """Where a claim stands: what `record.claim` asks about the line."""

    step: Step
    entry: Entry | None
    run_id: str
    order: int

    @property
    def ending(self) -> bool:
        """Whether the run was dropped."""
        return self.entry is not None and self.entry.ending

    def ahead_ms(self, record: Record, *, resumed: bool) -> int:
        """Return for how long somebody ahead is in the way who is called or ready; 0 if nobody is."""
        now_ms = self.step.now_ms
        for entry in self.step.line.of(Standing.CALLED):
            if self.is_ahead(entry):
                return entry.until_ms - now_ms
        for begun in (True, False):
            first = self.step.line.first(begun=begun)
            if first is not None and self.is_ahead(first) and (not resumed or fits(record, first, now_ms)):
                return HAIL_MS
        return 0

    def is_ahead(self, entry: Entry) -> bool:
        """Say whether an entry of another run goes before this one."""
        return entry.run_id != self.run_id and entry.order < self.order


def room(step: Step) -> int:
    """Return how many more may be called: so many may hold the key, so many do, so many are called."""
    return 1 - rules.live(step.record, step.now_ms) - len(step.line.of(Standing.CALLED))


def fits(record: Record, entry: Entry, now_ms: int) -> bool:
    """Say whether the window lets an entry start."""
    return entry.begun or now_ms > rules.opens(record, entry.window_ms)


def claim(
    step: Step, asked: Claim, arrival: Arrival, wait: Wait | None = None, *, counting: bool = False
) -> tuple[Record | None, Lined]:
    """Decide a claim, and with ``wait`` what becomes of it if it is refused."""
    step.begin()
    entry = step.line.find(asked.run_id)
    order = entry.order if entry is not None else _carried(arrival, step.now_ms)
    place = Place(step, entry, asked.run_id, order or BEHIND_ALL)
    resumed = rules.standing(step.record, asked)[1]
    changed, answer = rules.claim(
        step.record, asked, step.now_ms, tick=step.now_us, counting=counting and wait is None, place=place
    )
    step.record = changed or step.record
    came = entry is not None and bool(arrival.call_no) and arrival.call_no == entry.call_no
    if isinstance(answer, Granted):
        if entry is not None:
            _granted(step, entry, came=came)
    elif answer.reason is Reason.FINISHED:
        if entry is not None and entry.attempt <= asked.attempt:
            step.remove(entry)
    elif answer.reason is not Reason.ENDING:
        if entry is not None and (came or entry.kind in _BY_ITSELF):
            entry = _uncalled(step, entry)
        if wait is not None and answer.reason is not Reason.SUPERSEDED:
            order = _wait(step, entry, asked, wait, order, resumed=resumed)
    called = finish(step)
    return step.record, Lined(answer, called, order)


def _carried(arrival: Arrival, now_ms: int) -> int:
    # A message may say anything; nobody came first in the future.
    return arrival.order if 0 < arrival.order <= now_ms + LONGEST_MS else 0


def _granted(step: Step, entry: Entry, *, came: bool) -> None:
    if came or entry.kind in _BY_ITSELF:
        step.remove(entry)
        return
    stays = replace(entry, until_ms=0, call_no=0, calls=0, in_hand=False, hailed=False, begun=True)
    step.put(placed(stays, step.now_ms), entry)


def _uncalled(step: Step, entry: Entry) -> Entry:
    """End the call of an entry, whose claim was refused all the same."""
    in_time = entry.until_ms > step.now_ms
    after = replace(
        entry,
        until_ms=0,
        call_no=0,
        calls=0 if in_time else entry.calls,
        in_hand=False,
        hailed=False,
    )
    after = placed(after, step.now_ms)
    step.put(after, entry)
    return after


def _wait(step: Step, entry: Entry | None, asked: Claim, wait: Wait, order: int, *, resumed: bool) -> int:
    """Put a refused claim into the line, or its message into its entry; return its order."""
    now_ms, before = step.now_ms, entry
    if entry is None:
        order = order or max(step.record.order + 1, now_ms)
        step.record = replace(step.record, order=max(step.record.order, order))
        entry = Entry(asked.run_id, asked.attempt, order, since_ms=now_ms)
    message: bytes | None = None
    if wait.kind in _BY_ITSELF and not entry.size:
        entry = replace(entry, kind=wait.kind, ends_ms=now_ms + wait.life_ms, life_ms=wait.life_ms)
    elif wait.message and (not entry.size or entry.attempt <= asked.attempt):
        message = wait.message
        entry = replace(entry, kind=wait.kind, size=len(message), home=wait.home, ends_ms=0, life_ms=0)
    if entry.kind is Kind.JOINING:
        distance = min(2 * entry.look_ms, LONGEST_MS) or wait.life_ms
        entry = replace(entry, due_ms=now_ms + distance, look_ms=distance)
    attempt, begun = max(entry.attempt, asked.attempt), entry.begun or resumed
    entry = replace(entry, attempt=attempt, begun=begun, window_ms=asked.window_ms)
    step.put(placed(entry, now_ms), before, message)
    if wait.home and wait.home not in step.record.homes.split("\n"):
        homes = f"{step.record.homes}\n{wait.home}".strip("\n")
        # Without a moment the index of every home is written.
        step.record = replace(step.record, homes=homes, moment_ms=NEVER)
    return entry.order


def release(step: Step, asked: Release) -> tuple[Record, Released]:
    """Record how a delivery ended, and call."""
    step.begin()
    entry = step.line.find(asked.run_id)
    known = _is_known(step.record, asked.run_id)
    step.record, ours = rules.release(step.found and step.record, asked, step.now_ms)
    if asked.outcome.final:
        if entry is not None:
            step.remove(entry)
        if step.record.waiting:
            step.line.wake()
    elif entry is not None:
        if asked.outcome is Outcome.RETRYING and entry.attempt <= asked.attempt:
            step.remove(entry)
        elif known and not entry.attempt and not _is_known(step.record, asked.run_id):
            # What the grant had written was taken back: the run has not begun.
            step.put(placed(replace(entry, begun=False), step.now_ms), entry)
    called = finish(step)
    return step.record, Released(ours, called)


def _is_known(record: Record, run_id: str) -> bool:
    return any(run.run_id == run_id for run in record.runs)


def sent(step: Step, run_id: str, call_no: int, *, remember_ms: int) -> tuple[Record | None, bool]:
    """Let a called message leave the line, if that is its call."""
    step.begin()
    entry = step.line.find(run_id)
    ours = entry is not None and bool(call_no) and entry.call_no == call_no
    if ours and entry is not None:
        now_ms = step.now_ms
        away = replace(
            entry,
            size=0,
            in_hand=False,
            hailed=False,
            until_ms=now_ms + call_lasts(entry.calls),
            passed=0,
            away_ms=0,
            ends_ms=now_ms + remember_ms,
            life_ms=remember_ms,
        )
        step.put(placed(away, now_ms), entry)
    finish(step)
    return step.changed, ours


def leave(step: Step, run_id: str) -> tuple[Record | None, tuple[Called, ...]]:
    """Take a run out of the line, and call."""
    step.begin()
    entry = step.line.find(run_id)
    if entry is not None:
        step.remove(entry)
    called = finish(step)
    return step.changed, called


def drop(step: Step, run_id: str) -> tuple[Record | None, bool]:
    """Mark the entry of a run that has not begun as ending."""
    step.begin()
    entry = step.line.find(run_id)
    is_live = rules.live(step.record, step.now_ms) and step.record.run_id == run_id
    marked = entry is not None and not (entry.begun or is_live)
    if marked and entry is not None and not entry.ending:
        # Called already: it is on its way, and learns that it is ending when it arrives.
        step.put(placed(replace(entry, ending=True), step.now_ms), entry)
    finish(step)
    return step.changed, marked


def look(step: Step) -> tuple[Record | None, tuple[Called, ...]]:
    """Call because the key's moment has come; what the index says for these homes is put right."""
    if not step.record.waiting:
        _recount(step)
    step.begin()
    called = finish(step, exact=True)
    return step.changed, called


def _recount(step: Step) -> None:
    """Find out what a record that was lost knew of its line."""
    for entry in step.line.listed():
        step.put(entry)
        homes = {*step.record.homes.split("\n"), entry.home} - {""}
        order = max(step.record.order, entry.order)
        step.record = replace(step.record, homes="\n".join(sorted(homes)), order=order)


def evict(step: Step) -> tuple[Record | None, bool]:
    """Free the key by force, and call."""
    step.begin()
    changed, found = rules.evict(step.found and step.record, step.now_ms)
    step.record = changed or step.record
    finish(step)
    return step.changed, found


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
    if entry.kind in _BY_ITSELF:
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
