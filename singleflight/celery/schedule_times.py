"""When a beat entry is due, what its ticks are called, and what counts as its last run; pure.

The same for every replica that knows the same last run: no clock and no chance takes part.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import schedule as interval

SKEW = timedelta(seconds=5)
"""By how much a replica's clock and the store's may differ."""


def in_utc(moment: datetime) -> datetime:
    """Return a moment as UTC; Celery takes a naive one for UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def in_zone_of(entry: Any, moment: datetime) -> datetime:
    """Return a moment in the zone that an entry's schedule counts in, because Celery compares wall clocks."""
    zone = entry.default_now().tzinfo
    return moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)


def tick_id(entry: str, due: datetime) -> str:
    """Return the run id of an entry's tick that is due at an instant."""
    return f"{entry}@{in_utc(due).isoformat()}"


def due_of(run_id: str) -> datetime | None:
    """Return the due instant in a tick's run id; None if a foreign text stands there."""
    try:
        return in_utc(datetime.fromisoformat(run_id.rpartition("@")[2]))
    except ValueError:
        return None


def task_id(key: str, run_id: str) -> str:
    """Return the id under which a tick's message is published, the same however often it is sent."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{key} {run_id}"))


def next_due(entry: Any) -> datetime:
    """Return the first instant of an entry after its last run, as UTC.

    An interval has no other instants than one period after the other. Any other schedule is asked as if it
    were still the moment of the last run.
    """
    last = in_utc(entry.last_run_at)
    if period := period_of(entry.schedule):
        return last + period
    local = in_zone_of(entry, last)
    frozen = object.__new__(type(entry.schedule))  # copy.copy() would lose the app of Celery's schedules
    frozen.__dict__.update(entry.schedule.__dict__, now=lambda: local)
    remaining: timedelta = frozen.remaining_estimate(local)
    return last + remaining


def period_of(schedule: Any) -> timedelta:
    """Return the time between two ticks of an interval that counts from its last run; zero for others."""
    if isinstance(schedule, interval) and not schedule.relative:
        return max(timedelta(seconds=schedule.seconds), timedelta(milliseconds=1))
    return timedelta(0)


def last_run(schedule: Any, due: datetime, started: datetime | None) -> datetime:
    """Return what counts as the last run once a tick is sent.

    An interval goes on from the due instant, so that it does not drift; if the next one has passed already,
    from ``started`` (when the tick was claimed, on the store's clock), so that an outage is made up for once.
    Nothing goes on from before its due instant: a replica whose clock is a little ahead sends early, and the
    others must not take the same instant for due again.
    """
    if started is None or (due <= started + SKEW and started < due + period_of(schedule)):
        return due
    return started if due > started + SKEW else max(due, started)
