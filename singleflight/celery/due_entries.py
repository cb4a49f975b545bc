"""Which entries are due here: each is asked by the last run that replicas share, and claimed if it is due."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.schedules import crontab

from singleflight.celery.beat_entries import counts_from_start, note_one_off
from singleflight.celery.planned_times import Planned, plan
from singleflight.celery.schedule_times import Last, Tick, in_utc, in_zone_of, later, rule_of
from singleflight.celery.ticks import LOOK_AGAIN, Claimed, Later, Ticks, give_back
from singleflight.lease import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.celery.beat_options import EntryOptions

EARLY = 0.01
"""Seconds by which Celery wakes up before the time that a schedule named."""

LONGEST_REST = 60.0
"""Seconds: an entry whose publishing fails is tried again after 1, 2, 4 ... at most these."""


class DueEntries:
    """What one replica knows of the last runs of all entries, and the one tick that it has claimed."""

    def __init__(
        self, ticks: Ticks, ask: Callable[[Any], Any], options: Callable[[Any], EntryOptions], in_time: float
    ) -> None:
        """Ask entries as ``ask`` does; a tick that is sent within ``in_time`` seconds is not missed."""
        self._ticks = ticks
        self._ask = ask
        self._options = options
        self._in_time = in_time
        self._told: dict[str, datetime] = {}
        self._failing: dict[str, tuple[float, float]] = {}
        self.known: dict[str, Last] = {}
        self.claimed: Claimed | None = None
        self.planned: datetime | None = None
        """The planned time that the claimed tick stands for, if its entry goes by them."""
        self.next: Any = None
        """For how many seconds the schedule of the claimed tick wants to rest."""

    def claimed_of(self, entry: Any) -> Claimed | None:
        """Return the claim on an entry's tick, if there is one."""
        claimed = self.claimed
        return claimed if claimed is not None and claimed.tick.entry == entry.name else None

    def take(self, entry: Any) -> Claimed | Later:
        """Return the claim on an entry's tick, claiming it now if it is due and nobody has asked before."""
        if claimed := self.claimed_of(entry):
            return claimed
        for _ in range(5):  # to learn of a tick takes one more question, and there is hardly more to learn
            answer = self._claim(entry)
            if isinstance(answer, Later):
                return answer
            if isinstance(answer, Claimed):
                self.drop()
                self.claimed = answer
                return answer
            self.known[entry.name] = answer
        return Later(LOOK_AGAIN)

    def _claim(self, entry: Any) -> Claimed | Later | Last:
        last = self.follow(entry)
        if (rest := self._failing.get(entry.name, (0.0, 0.0))[0] - monotonic()) > 0:
            return Later(rest)
        due, wait = self._ask(entry)
        now = in_utc(entry.default_now())  # not before: the last run must not be earlier than what was due
        if not due:
            if told := later(now, wait):
                self._told[entry.name] = told
            return Later(wait)
        rule = rule_of(entry.schedule)
        rest = max(last.wait(now, rule), _left_of_minute(entry.schedule, last, now, rule))
        if rest > 0:
            return Later(rest + EARLY)
        return self._claim_due(entry, last, now, wait)

    def _claim_due(self, entry: Any, last: Last, now: datetime, wait: Any) -> Claimed | Later | Last:
        rule = rule_of(entry.schedule)
        planned = self._plan(entry, last, now)
        if isinstance(planned, datetime):
            return Later((planned - now).total_seconds() + EARLY)
        if planned is None:
            tick, missed = last.next(entry.name, now, wait, rule), self._too_late(entry, last, now)
        else:
            tick, missed = Tick(entry.name, last.at, planned.at, planned.again, rule), planned.missed
        answer = self._ticks.claim(tick, last.run_id)
        if isinstance(answer, Last):
            return last.then(answer)
        if isinstance(answer, Claimed) and missed:
            self._ticks.tell_missed(answer, missed)
            if planned is None or planned.is_missed:
                return self._leave_out(answer)
        if isinstance(answer, Claimed):
            self.planned = None if planned is None else planned.at
            self.next = _rest(answer.tick.again, wait, entry)
        return answer

    def _plan(self, entry: Any, last: Last, now: datetime) -> Planned | datetime | None:
        """Return which planned time is to be sent, if the entry goes by them."""
        options = self._options(entry)
        if not options.by_plan or last.at is None:
            return None
        if options.catch_up == "none":
            options = replace(options, catch_up_window=self._in_time)
        return plan(entry, options, last.at, now)

    def _too_late(self, entry: Any, last: Last, now: datetime) -> list[datetime]:
        """Return when a tick was due that is to be left out."""
        told = max((one for one in (last.again, self._told.get(entry.name)) if one), default=None)
        late = told is not None and now - told > timedelta(seconds=self._in_time)
        return [told] if told and late and self._options(entry).catch_up == "none" else []

    def _leave_out(self, claimed: Claimed) -> Last:
        """Have all replicas count a missed tick as sent."""
        self._ticks.confirm(claimed)
        return claimed.last(ours=False)

    def follow(self, entry: Any) -> Last:
        """Have an entry go on from the shared last run; its own is the first if no other is known."""
        own = None if entry.last_run_at is None else in_utc(entry.last_run_at)
        known = self.known.setdefault(entry.name, Last("", own))
        # A database keeps when a tick was sent, which may be later than the time that it was planned for.
        ours = counts_from_start(entry) or (known.run_id and self._options(entry).by_plan)
        if known.at is not None and (own is None or own < known.at or ours):
            entry.last_run_at = in_zone_of(entry, known.at)
        note_one_off(entry, known)
        return known

    def sent(self, claimed: Claimed) -> None:
        """Have all replicas know that a tick was sent."""
        self._ticks.confirm(claimed)
        self._failing.pop(claimed.tick.entry, None)
        self.known[claimed.tick.entry] = claimed.last()

    def failed(self, entry: Any) -> float:
        """Note that an entry's tick could not be sent; return for how many seconds it is not tried here."""
        _, rest = self._failing.get(entry.name, (0.0, 0.5))
        rest = min(2 * rest, LONGEST_REST)
        self._failing[entry.name] = monotonic() + rest, rest
        return rest

    def drop(self) -> None:
        """Give back a claim that the loop did not use."""
        claimed, self.claimed = self.claimed, None
        if claimed is not None:
            give_back(claimed.lease)


def _left_of_minute(schedule: Any, last: Last, now: datetime, rule: str) -> float:
    """Return for how many seconds a crontab that was sent in this minute is left alone.

    A crontab is due once a minute at most. In the hour that autumn's change of clocks repeats, one of another
    zone than the app's says that it is due whenever it is asked, and plain beat sends it each time.
    """
    if not isinstance(schedule, crontab) or not last.sent or last.at is None or last.rule != rule:
        return 0.0
    minute = now.replace(second=0, microsecond=0)
    return 60.0 - (now - minute).total_seconds() if minute <= last.at <= now else 0.0


def _rest(again: datetime | None, wait: Any, entry: Any) -> Any:
    """Return what is left of the time that a schedule gave, now that its tick is claimed."""
    if again is None:
        return wait
    left = (again - in_utc(entry.default_now())).total_seconds()
    # A moment tells no less than a microsecond.
    return wait if abs(left - wait) < 2e-6 else max(0.0, left)  # noqa: PLR2004
