"""What operators do with beat's entries: look, send one now, send again what was planned, pause.

    from singleflight.celery.beat import backfill, entries, pause, resume, trigger

Needs no beat that runs: the schedule is the app's (or its database's), and all else is in the store.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery.schedules import schedule

from singleflight.celery import beat_pauses
from singleflight.celery.beat_options import IN_ENTRY
from singleflight.celery.beat_schedulers import runtime_of, scheduler_of
from singleflight.celery.planned_times import MOST, planned_times
from singleflight.celery.schedule_times import in_utc, in_zone_of, last_of
from singleflight.celery.scheduler_mixin import PLANNED, REMEMBER, TTL
from singleflight.celery.ticks import give_back, tick_key
from singleflight.errors import ConfigurationError
from singleflight.keys import lease_key
from singleflight.lease import Lease, Outcome, Reason
from singleflight.leases.claiming import Request, new_token
from singleflight.stores.view import View

if TYPE_CHECKING:
    from celery import Celery

    from singleflight.celery.beat_pauses import Pause
    from singleflight.celery.runtime import Runtime
    from singleflight.lease import Holder

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LATE = timedelta(seconds=10)
"""A planned time that is longer ago and was not sent is missed."""

LOOK_AGAIN = 0.1
"""Seconds after which a planned time that somebody else is just sending is looked at again."""


@dataclass(frozen=True, slots=True)
class BeatEntry:
    """One entry of the schedule, and what the store knows of it; times in UTC."""

    name: str
    task: str
    schedule: str
    """In words."""
    last: datetime | None
    """When it was sent last; None if no beat has sent it yet."""
    by: Holder | None
    """Who claimed its last tick."""
    next: datetime | None
    """Its next planned time; None if its schedule names none."""
    missed: int
    """Planned times that have passed and were not sent."""
    paused: Pause | None


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What became of a backfill."""

    sent: list[datetime]
    before: list[datetime]
    """Planned times that a backfill had sent before, or another one has at the same time."""


def entries(app: Celery) -> list[BeatEntry]:
    """Return all entries, by name."""
    runtime = runtime_of(app)
    return [_look(runtime, entry) for _, entry in sorted(scheduler_of(runtime).schedule.items())]


def trigger(app: Celery, name: str) -> str:
    """Send an entry once, now and whatever its schedule says; return the id of its message.

    Its rhythm stays as it is, and a pause does not matter.

    Raises:
        ConfigurationError: if there is no such entry.
    """
    scheduler = scheduler_of(runtime_of(app))
    task_id = str(uuid.uuid4())
    _send(scheduler, _entry(scheduler, name), task_id)
    return task_id


def backfill(app: Celery, name: str, begin: datetime, end: datetime) -> Backfilled:
    """Send an entry for each planned time from ``begin`` on and before ``end``, as far as that is past.

    Each once, however often and by however many it is asked; whether beat sent it in its time does not
    matter. A message has the header ``singleflight_planned``.

    Raises:
        ConfigurationError: if there is no such entry, or its schedule names no planned times.
        StoreUnavailable: if the store does not answer; ask again, and what was sent is not sent again.
    """
    runtime = runtime_of(app)
    scheduler = scheduler_of(runtime)
    entry = _entry(scheduler, name)
    end = min(in_utc(end), in_utc(entry.default_now()))
    times = planned_times(entry, _just_before(entry.schedule, in_utc(begin)))
    leases = runtime.open_leases(remember=REMEMBER)
    done = Backfilled([], [])
    for at in islice(times, MOST):
        if at >= end:
            break
        request = Request(
            key=lease_key(f"{runtime.prefix}:beat:backfill", f"{name}@{at.isoformat()}"),
            task=f"beat:{name}",
            run_id=f"backfill:{name}@{at.isoformat()}",
            token=new_token(),
            ttl=TTL,
            max_hold=TTL,
        )
        answer = leases.claim(request)
        while not isinstance(answer, Lease) and answer.reason is not Reason.FINISHED:
            time.sleep(min(answer.retry_after, LOOK_AGAIN))
            answer = leases.claim(request)
        if not isinstance(answer, Lease):
            done.before.append(at)
            continue
        try:
            # The same for whoever sends it: who dies before the end of this costs a copy and no second run.
            _send(
                scheduler, entry, str(uuid.uuid5(uuid.NAMESPACE_URL, f"{request.key} {request.run_id}")), at
            )
        except BaseException:
            give_back(answer)
            raise
        answer.release(Outcome.FINISHED)
        done.sent.append(at)
    return done


def pause(app: Celery, name: str, *, owner: str, note: str = "", seconds: float | None = None) -> Pause:
    """Keep an entry from being sent by any replica, for some seconds or until it is resumed.

    What comes due meanwhile is made up for afterwards as its ``catch_up`` says.

    Raises:
        ConfigurationError: if there is no such entry, or somebody else has paused it.
        StoreUnavailable: if the store does not answer.
    """
    runtime = runtime_of(app)
    now = in_utc(_entry(scheduler_of(runtime), name).default_now())
    store, key = runtime.open_leases(remember=REMEMBER).store, tick_key(runtime.prefix, name)
    return beat_pauses.pause(store, key, name, now, owner=owner, note=note, seconds=seconds)


def resume(app: Celery, name: str) -> Pause | None:
    """End the pause of an entry; return the one that there was, or None. Replicas learn it within 5 s."""
    runtime = runtime_of(app)
    return beat_pauses.resume(runtime.open_leases(remember=REMEMBER).store, tick_key(runtime.prefix, name))


def _just_before(when: Any, begin: datetime) -> datetime:
    """Return the moment after which the first planned time from ``begin`` on follows."""
    if type(when) is schedule and not when.relative and when.run_every:
        # Its own rhythm is that of its runs; here all who ask must mean the same times.
        step: timedelta = when.run_every
        return begin - ((begin - EPOCH) % step or step)
    return begin - timedelta(microseconds=1)


def _entry(scheduler: Any, name: str) -> Any:
    try:
        return scheduler.schedule[name]
    except KeyError:
        known = ", ".join(sorted(scheduler.schedule)) or "none"
        raise ConfigurationError(f"beat has no entry {name}; there are: {known}") from None


def _look(runtime: Runtime, entry: Any) -> BeatEntry:
    view = View(runtime.leases.store.peek(tick_key(runtime.prefix, entry.name)))
    paused = beat_pauses.pause_of(view)
    last = None
    if view.run_id:
        last = last_of(entry.name, view.run_id, view.started, ended=view.over(view.run_id))
    if last is not None and last.at is not None:
        entry.last_run_at = in_zone_of(entry, last.at)
    now, upcoming, missed = in_utc(entry.default_now()), None, 0
    for at in islice(planned_times(entry, in_utc(entry.last_run_at)), MOST) if entry.last_run_at else ():
        if at > now - LATE:
            upcoming = at
            break
        missed += 1
    sent = last is not None and last.sent and last.at
    return BeatEntry(
        entry.name,
        entry.task,
        _in_words(entry.schedule),
        last.at if last is not None and sent else None,
        None if paused or not sent else view.holder,
        upcoming,
        missed,
        paused,
    )


def _in_words(when: Any) -> str:
    if type(when) is schedule:
        return f"every {when.human_seconds}"
    return str(when).strip("<>").removesuffix(" (m/h/dM/MY/d)").replace(": ", " ", 1)


def _send(scheduler: Any, entry: Any, task_id: str, planned: datetime | None = None) -> None:
    own = entry.options
    options = {**(own or {}), "task_id": task_id}
    options.pop(IN_ENTRY, None)
    if planned is not None:
        options["headers"] = {**options.get("headers", {}), PLANNED: planned.isoformat()}
    entry.options = options
    try:
        scheduler.apply_async(entry, advance=False)
    finally:
        entry.options = own
