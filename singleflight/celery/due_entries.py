"""Which entries are due here: each is asked by the last run that replicas share, and claimed if it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.schedules import crontab

from singleflight.celery.beat_entries import counts_from_start, note_one_off
from singleflight.celery.schedule_times import Last, in_utc, in_zone_of, later, rule_of
from singleflight.celery.ticks import LOOK_AGAIN, Claimed, Later, Ticks, give_back
from singleflight.lease import monotonic
from singleflight.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

LONGEST_REST = 60.0
"""Seconds: an entry whose publishing fails is tried again after 1, 2, 4 ... at most these."""


class DueEntries:
    """What one replica knows of the last runs of all entries, and the one tick that it has claimed."""

    def __init__(self, ticks: Ticks, ask: Callable[[Any], Any], latest: timedelta | None) -> None:
        """Ask entries as ``ask`` does; with ``latest``, leave out a tick that comes later than that."""
        self._ticks = ticks
        self._ask = ask
        self._latest = latest
        self._told: dict[str, datetime] = {}
        self._failing: dict[str, tuple[float, float]] = {}
        self.known: dict[str, Last] = {}
        self.claimed: Claimed | None = None
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
            return Later(rest)
        answer = self._ticks.claim(last.next(entry.name, now, wait, rule), last.run_id)
        if isinstance(answer, Last):
            return last.then(answer)
        if isinstance(answer, Claimed):
            if self._is_missed(entry.name, last, now):
                return self._leave_out(answer)
            self.next = _rest(answer.tick.again, wait, entry)
        return answer

    def _is_missed(self, name: str, last: Last, now: datetime) -> bool:
        """Return whether a tick was due long ago and is to be left out."""
        told = max((one for one in (last.again, self._told.get(name)) if one), default=None)
        return self._latest is not None and told is not None and now - told > self._latest

    def _leave_out(self, claimed: Claimed) -> Last:
        """Have all replicas count a missed tick as sent."""
        logger.warning("singleflight: %s: missed, and left out", claimed.tick.run_id)
        self._ticks.confirm(claimed)
        return claimed.last(ours=False)

    def follow(self, entry: Any) -> Last:
        """Have an entry go on from the shared last run; its own is the first if no other is known."""
        own = None if entry.last_run_at is None else in_utc(entry.last_run_at)
        known = self.known.setdefault(entry.name, Last("", own))
        if known.at is not None and (own is None or own < known.at or counts_from_start(entry)):
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
