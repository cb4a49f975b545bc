"""What each operation makes of a line: the rules of `singleflight.stores.lining.Lining`, over values.

A store gives each a record, a `Line` that nobody else can change meanwhile, and its clock; it gets the record
to write (None: write nothing) and the answer. What the line is told to write must be written with the record
or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from singleflight.lease import Granted, Outcome, Reason
from singleflight.stores import record_rules as rules
from singleflight.stores.line import HAIL_MS, LONGEST_MS, NEVER, Entry, call_lasts, placed
from singleflight.stores.line_call import BY_ITSELF, Step, finish, fits
from singleflight.stores.lining import Kind, Lined, Released, Standing

if TYPE_CHECKING:
    from singleflight.stores.base import Claim, Record, Release
    from singleflight.stores.lining import Arrival, Called, Wait

BEHIND_ALL = rules.ENDLESS_MS
"""The order of a run that has none."""


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
        if entry is not None and (came or entry.kind in BY_ITSELF):
            entry = _uncalled(step, entry)
        if wait is not None and answer.reason is not Reason.SUPERSEDED:
            order = _wait(step, entry, asked, wait, order, resumed=resumed)
    called = finish(step)
    return step.record, Lined(answer, called, order)


def _carried(arrival: Arrival, now_ms: int) -> int:
    # A message may say anything; nobody came first in the future.
    return arrival.order if 0 < arrival.order <= now_ms + LONGEST_MS else 0


def _granted(step: Step, entry: Entry, *, came: bool) -> None:
    if came or entry.kind in BY_ITSELF:
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
    if wait.kind in BY_ITSELF and not entry.size:
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
    step.begin()
    called = finish(step, exact=True)
    return step.changed, called


def evict(step: Step) -> tuple[Record | None, bool]:
    """Free the key by force, and call."""
    step.begin()
    changed, found = rules.evict(step.found and step.record, step.now_ms)
    step.record = changed or step.record
    finish(step)
    return step.changed, found
