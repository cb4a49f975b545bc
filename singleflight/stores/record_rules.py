"""What each operation makes of a record: pure functions for stores that decide in Python.

Every function takes the record that the store found (None if there is none) and the store's clock, and
returns the record to write (None: write nothing) and the answer. The store's part is to run one of them
between a read and a write that nobody can come between, and to let a written record live until
`life_ends`. The rules themselves are the docstring of `singleflight.stores.base.Store`; the Lua scripts
are the same rules for a server that decides itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from singleflight.lease import Busy, Granted, Holder, Outcome, Reason
from singleflight.stores.base import INFINITE, RUNS_KEPT, Claim, Record, Release, Renewal, Renewed, Run, Waits

ENDLESS_MS = 1 << 53
"""An end that never comes."""


class Place(Protocol):
    """What a claim's place in the line says to it."""

    @property
    def ending(self) -> bool:
        """Whether the run was dropped."""
        ...

    def ahead_ms(self, record: Record, *, resumed: bool) -> int:
        """Return for how long somebody ahead is in the way; 0 if nobody is."""
        ...


_MET = (Reason.RUNNING, Reason.WINDOW, Reason.RESERVED)
"""Another run was in the way; the other reasons are about the claiming run itself."""


def live(record: Record, now_ms: int) -> bool:
    """Return whether the lease is held and has not expired."""
    return record.held and record.expires_ms > now_ms


def life_ends(record: Record, now_ms: int, remember_ms: int) -> int:
    """Return when a record that is written now may be forgotten."""
    if record.parked:
        return ENDLESS_MS
    times = (record.expires_ms, record.opens_ms, record.slot_expires_ms, record.moment_ms)
    return max(now_ms, *times) + remember_ms


def repaired(record: Record, now_ms: int) -> Record:
    """Return the record with no time further ahead than it can be: clocks step back, replicas differ."""
    ahead = max(0, record.started_ms - now_ms)
    return replace(
        record,
        expires_ms=min(record.expires_ms, now_ms + record.ttl_ms),
        started_ms=record.started_ms - ahead,
        opens_ms=max(0, record.opens_ms - ahead),
    )


def claim(
    record: Record | None,
    asked: Claim,
    now_ms: int,
    *,
    tick: int,
    counting: bool = False,
    place: Place | None = None,
) -> tuple[Record | None, Granted | Busy]:
    """Decide a claim; ``tick`` is the store's clock in microseconds, the least that a new fence may be.

    ``counting`` counts refusals: not for stores that compare and set, where every write of one duplicate
    would make others decide again.
    """
    found = repaired(record or Record(), now_ms)
    if live(found, now_ms) and found.token == asked.token:
        return found, Granted(found.fence, False, found.started_ms, found.opens_ms)
    done, resumed = standing(found, asked)
    obstacle = _obstacle(found, asked, now_ms, place, done=done, resumed=resumed)
    if obstacle is None:
        return _grant(found, asked, now_ms, tick=tick, resumed=resumed)
    reason, retry_ms = obstacle
    found = _slot_after_refusal(found, asked, reason, now_ms)
    if counting and not (asked.wait_ms or resumed) and reason in _MET:
        found = replace(found, refused=found.refused + 1, refused_ms=now_ms, refused_reason=reason)
    return found, _busy(found, reason, found.run_id, retry_ms, now_ms, resumed=resumed)


def standing(record: Record, asked: Claim) -> tuple[bool, bool]:
    """Return whether the attempt of a claim is done, and whether its run is resumed."""
    before = _seen(record, asked.run_id)
    done = before is not None and (before.attempt, before.ended) >= (asked.attempt, True)
    return done, not done and (asked.attempt > 0 or before is not None)


def opens(record: Record, window_ms: int) -> int:
    """Return until when no run with this window may start, its last instant included; 0 if one may."""
    if window_ms and record.started_ms:
        return max(record.opens_ms, record.started_ms + window_ms)
    return record.opens_ms


def renew(
    record: Record | None, asked: Renewal, now_ms: int, *, remember_ms: int
) -> tuple[Record | None, Renewed]:
    """Decide a renewal; a missing record is written back while it would still be remembered."""
    if record is None:
        if asked.age_ms >= remember_ms:
            return None, Renewed.LOST
        return _restored(asked, now_ms), Renewed.RESTORED
    found = repaired(record, now_ms)
    if found.token != asked.token or not found.held or found.outcome:
        return None, Renewed.LOST
    return replace(found, expires_ms=now_ms + asked.ttl_ms, ttl_ms=asked.ttl_ms), Renewed.RENEWED


def release(record: Record | None, asked: Release, now_ms: int) -> tuple[Record, bool]:
    """Record how a delivery ended; True if the token was the record's."""
    own = record is not None and record.token == asked.token
    found = repaired(record or Record(run_id=asked.run_id), now_ms)
    before = _seen(found, asked.run_id)
    # A release whose reply was lost is sent again, perhaps when the attempt that it announced runs already.
    overtaken = before is not None and (before.attempt, before.ended) > (asked.attempt, True)
    if asked.outcome.final:
        found = _mark(found, Run(asked.run_id, INFINITE, True))
        if found.slot == asked.run_id:
            found = _with_slot(found, "", 0)
    elif asked.outcome is Outcome.RETRYING:
        found = _mark(found, Run(asked.run_id, asked.attempt, True))
    if asked.again_ms and not overtaken and (found.slot == asked.run_id or not _slot_taken(found, now_ms)):
        found = _with_slot(found, asked.run_id, now_ms + asked.again_ms)
    if own and found.held:
        # The first outcome stays: a hard-killed body may be released twice, by child and by parent.
        found = replace(found, outcome=found.outcome or asked.outcome)
        if asked.grace_ms:
            found = replace(found, expires_ms=min(found.expires_ms, now_ms + asked.grace_ms))
        else:
            taken_back = found.fresh and not asked.began
            found = replace(found, held=False, fresh=False)
            if taken_back:
                found = _taken_back(found, asked)
    return found, own


def queue(
    record: Record | None, run_id: str, now_ms: int, *, ttl_ms: int, running_too: bool
) -> tuple[Record | None, Busy | None]:
    """Decide about the waiting slot for a run that has been published; None means it is taken."""
    found = repaired(record or Record(), now_ms)
    if _seen(found, run_id):
        return None, _busy(found, Reason.FINISHED, run_id, 0, now_ms)
    if found.queued:
        return None, _busy(found, Reason.QUEUED, found.slot, 0, now_ms)
    if found.slot != run_id and _slot_taken(found, now_ms):
        return None, _busy(found, Reason.QUEUED, found.slot, found.slot_expires_ms - now_ms, now_ms)
    if running_too and live(found, now_ms) and found.run_id != run_id:
        return None, _busy(found, Reason.RUNNING, found.run_id, found.expires_ms - now_ms, now_ms)
    return _with_slot(found, run_id, now_ms + ttl_ms), None


def unqueue(record: Record | None, run_id: str, now_ms: int) -> tuple[Record | None, bool]:
    """Clear the waiting slot if it is this run's; True if it was."""
    if record is None or not record.slot or record.slot != run_id:
        return None, False
    return _with_slot(repaired(record, now_ms), "", 0), True


def evict(record: Record | None, now_ms: int) -> tuple[Record | None, bool]:
    """End lease, window and waiting by force, leaving a tombstone; True if there was a record."""
    if record is None:
        return None, False
    found = _with_slot(repaired(record, now_ms), "", 0)
    found = replace(found, held=False, fresh=False, token="", outcome=Outcome.CANCELLED)
    return replace(found, started_ms=0, opens_ms=0), True


def _obstacle(  # noqa: PLR0911 - the first rule that fits
    found: Record, asked: Claim, now_ms: int, place: Place | None, *, done: bool, resumed: bool
) -> tuple[Reason, int] | None:
    """Return why the claim is refused, and the milliseconds until that lapses."""
    if done:
        return Reason.FINISHED, 0
    is_live = live(found, now_ms)
    if is_live and found.run_id == asked.run_id:
        return Reason.SAME_RUN, found.expires_ms - now_ms
    if place is not None and place.ending:
        return Reason.ENDING, 0
    if is_live:
        return Reason.RUNNING, found.expires_ms - now_ms
    opens_ms = opens(found, asked.window_ms)
    # An equal instant is still inside the window: clocks of whole milliseconds cannot tell them apart.
    if not resumed and opens_ms and now_ms <= opens_ms:
        return Reason.WINDOW, opens_ms - now_ms + 1
    if place is not None and (ahead_ms := place.ahead_ms(found, resumed=resumed)):
        return Reason.RESERVED, ahead_ms
    if (
        not (resumed or asked.waits is Waits.FIRST)
        and found.first
        and found.slot != asked.run_id
        and _slot_taken(found, now_ms)
    ):
        return Reason.RESERVED, found.slot_expires_ms - now_ms
    if asked.after is not None and found.run_id not in ("", asked.run_id, asked.after):
        return Reason.SUPERSEDED, 0
    return None


def _grant(found: Record, asked: Claim, now_ms: int, *, tick: int, resumed: bool) -> tuple[Record, Granted]:
    took_over = found.held and found.token != asked.token
    started_ms, opens_ms = found.started_ms, found.opens_ms
    if not resumed or not started_ms:
        started_ms = now_ms
        opens_ms = max(opens_ms, now_ms + asked.window_ms if asked.window_ms else 0)
    granted = replace(
        found,
        token=asked.token,
        run_id=asked.run_id,
        fence=max(found.fence + 1, tick),
        held=True,
        expires_ms=now_ms + asked.ttl_ms,
        ttl_ms=asked.ttl_ms,
        started_ms=started_ms,
        opens_ms=opens_ms,
        outcome="",
        holder=asked.holder,
        fresh=not resumed,
    )
    granted = _mark(granted, Run(asked.run_id, asked.attempt, False))
    if granted.slot == asked.run_id:
        granted = _with_slot(granted, "", 0)
    return granted, Granted(granted.fence, took_over, started_ms, opens_ms)


def _restored(asked: Renewal, now_ms: int) -> Record:
    record = Record(
        token=asked.token,
        run_id=asked.run_id,
        fence=asked.fence,
        held=True,
        expires_ms=now_ms + asked.ttl_ms,
        ttl_ms=asked.ttl_ms,
        started_ms=asked.started_ms,
        opens_ms=asked.opens_ms,
        holder=asked.holder,
    )
    return _mark(record, Run(asked.run_id, asked.attempt, False))


def _taken_back(record: Record, asked: Release) -> Record:
    """Return the record without what the grant of a run has written that never began."""
    runs = record.runs
    if asked.outcome is Outcome.REQUEUED:
        runs = tuple(run for run in runs if run.run_id != asked.run_id)
    return replace(record, started_ms=0, opens_ms=0, runs=runs)


def _slot_after_refusal(found: Record, asked: Claim, reason: Reason, now_ms: int) -> Record:
    if found.slot == asked.run_id:
        # A copy, of the run that works or of an attempt before its retry, has no place of its own.
        if reason in (Reason.SAME_RUN, Reason.FINISHED):
            return found
        if not asked.wait_ms:
            return _with_slot(found, "", 0)
        if asked.waits is Waits.PASSED:
            # Its publisher may have asked for longer: a message can stay long in a broker's queue.
            until = max(found.slot_expires_ms, now_ms + asked.wait_ms)
            return _with_slot(found, asked.run_id, until)
    elif not (asked.wait_ms and reason in (Reason.RUNNING, Reason.WINDOW)) or _slot_taken(found, now_ms):
        return found
    return _with_slot(found, asked.run_id, now_ms + asked.wait_ms, first=asked.waits is not Waits.PASSED)


def _with_slot(record: Record, run_id: str, expires_ms: int, *, first: bool = False) -> Record:
    return replace(record, slot=run_id, slot_expires_ms=expires_ms, first=first)


def _slot_taken(record: Record, now_ms: int) -> bool:
    return bool(record.slot) and record.slot_expires_ms > now_ms


def _seen(record: Record, run_id: str) -> Run | None:
    return next((run for run in record.runs if run.run_id == run_id), None)


def _mark(record: Record, run: Run) -> Record:
    """Remember the run at its end of the list; attempt and end only ever rise."""
    before = _seen(record, run.run_id)
    if before and (before.attempt, before.ended) >= (run.attempt, run.ended):
        return record
    runs = [each for each in record.runs if each.run_id != run.run_id] + [run]
    if len(runs) > RUNS_KEPT:
        # An ended run that is forgotten may start again; an open one would be taken for a duplicate. Half of
        # the room is for each, because some open ones never come back.
        full = sum(each.ended for each in runs) <= RUNS_KEPT // 2
        runs.remove(next(each for each in runs if each.ended is not full))
    return replace(record, runs=tuple(runs))


def _busy(
    record: Record, reason: Reason, run_id: str, retry_ms: int, now_ms: int, *, resumed: bool = False
) -> Busy:
    seen = _seen(record, record.run_id)
    return Busy(
        reason,
        run_id,
        retry_ms / 1000,
        holder=Holder.decode(record.holder),
        since=record.started_ms / 1000 if record.started_ms else None,
        resumed=resumed,
        waiting=record.slot if _slot_taken(record, now_ms) else "",
        # An attempt that ended with a retry has ended too; the run has not.
        ended=seen is not None and seen.ended and seen.attempt >= INFINITE,
    )
