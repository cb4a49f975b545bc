"""Which times a schedule has planned, and which of them is to be sent now; pure but for the schedule.

A schedule is asked as Celery asks it, on a clock that goes from one planned time to the next. That serves
whatever has its clock from Celery's `BaseSchedule`; a class that goes by another one names no planned times.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import MAXYEAR, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery.schedules import BaseSchedule, crontab, schedule

from singleflight.celery.schedule_times import in_utc, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.celery.beat_options import EntryOptions

A_YEAR = 365 * 86400.0

MOST = 10_000
"""Planned times that are gone through at once."""

QUESTIONS = 20
"""How often a schedule is asked for one planned time: some name a time, and then one a little later."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned time that is to be sent, or to be left out."""

    at: datetime
    again: datetime | None
    """When the next one is to be sent; None if there is none."""
    missed: list[datetime] = field(default_factory=list[datetime])
    """Planned times up to this one that are too long ago; this one itself if it is the last of them."""

    @property
    def is_missed(self) -> bool:
        """Whether it is to be left out itself."""
        return self.at in self.missed


def planned_times(entry: Any, after: datetime) -> Iterator[datetime]:
    """Go through the times that an entry has planned after a moment, in UTC, as far as it names any."""
    when = entry.schedule
    if not isinstance(when, BaseSchedule):
        return
    zone = entry.default_now().tzinfo

    def local(moment: datetime) -> datetime:
        return moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)

    # Not copied: some classes make themselves anew, and with the clock that they had.
    asked: Any = object.__new__(type(when))
    asked.__dict__.update(when.__dict__)
    last = now = in_utc(after)
    asked.nowfun = lambda: local(now)
    questions = 0
    while questions < QUESTIONS:
        due, wait = asked.is_due(local(last))
        if due:
            if now == last:
                return  # due whenever it is asked
            yield now
            last, questions = now, 0
            continue
        seconds = seconds_of(wait)
        if seconds is None or now.year + seconds / A_YEAR > MAXYEAR - 1:
            return
        now += max(timedelta(seconds=seconds), timedelta(microseconds=1))
        questions += 1


def plan(entry: Any, options: EntryOptions, after: datetime, now: datetime) -> Planned | datetime | None:
    """Return what is to be done with an entry that was sent last at ``after``, and is due at ``now``.

    That is a planned time to send or to leave out; or the moment until which it has to wait; or None if the
    schedule names no planned times.
    """
    if options.catch_up == "all":
        return _choose(entry, options, after, now)
    # From a moment near to now there are fewer to go through, and the latest is the same.
    near = _near(entry.schedule, after, now)
    found = _choose(entry, options, near, now)
    return found if near == after or isinstance(found, Planned) else _choose(entry, options, after, now)


def _choose(entry: Any, options: EntryOptions, after: datetime, now: datetime) -> Planned | datetime | None:
    window = None if options.catch_up_window is None else timedelta(seconds=options.catch_up_window)
    each = options.catch_up == "all"
    missed: list[datetime] = []
    found: datetime | None = None
    again: datetime | None = None
    for at in islice(planned_times(entry, after), MOST):
        moment = sent_at(entry.name, options, at)
        if moment > now or (found is not None and each):
            again = moment
            break
        if window is not None and now - moment > window:
            missed.append(at)
        else:
            found = at
    if found is None:
        return Planned(missed[-1], again, missed) if missed else again
    return Planned(found, again, missed if each else [])


def sent_at(name: str, options: EntryOptions, at: datetime) -> datetime:
    """Return when a planned time is to be sent: the same moment for all replicas."""
    digest = hashlib.sha256(f"{name} {at.isoformat()}".encode()).digest()
    return at + timedelta(seconds=options.jitter * int.from_bytes(digest[:7]) / 2**56)


def _near(when: Any, after: datetime, now: datetime) -> datetime:
    """Return a moment after which the latest planned times are the same."""
    if isinstance(when, crontab):
        return max(after, now - timedelta(days=1))
    if type(when) is schedule and not when.relative and when.run_every:
        step: timedelta = when.run_every
        return after + max(0, (now - after) // step - 2) * step
    return after
