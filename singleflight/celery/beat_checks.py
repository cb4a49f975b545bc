"""What beat says when it starts: what sends nothing, or less than it seems, and the remedy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import crontab, schedule

from singleflight.celery.task import SingletonTask
from singleflight.options import Singleton

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.celery.beat_options import EntryOptions
    from singleflight.celery.runtime import Runtime

CLEANUP = "celery.backend_cleanup"
"""The entry that Celery itself adds for some result backends."""

DJANGOS = "django_celery_beat.schedulers:DatabaseScheduler"

A_DAY = 86400.0


def findings(wrapped: type, scheduler: Any, remember: float, named: set[str]) -> Iterator[str]:
    """Yield what is wrong with a new scheduler; ``remember`` is its store's, in seconds.

    ``named`` are the entries that have options in the settings.
    """
    if wrapped in (Scheduler, PersistentScheduler) and not set(scheduler.schedule) - {CLEANUP}:
        if _has_djangos_beat():
            yield (
                "beat has nothing to send: beat_schedule is empty, and the entries of django_celery_beat's "
                f"database are not read; set beat_scheduler = {DJANGOS!r} "
                f"(CELERY_BEAT_SCHEDULER in Django's settings), or singleflight_beat_scheduler = 'django'"
            )
        else:
            yield "beat has nothing to send: beat_schedule is empty"
    if getattr(scheduler, "lock_key", None):
        yield (
            f"redbeat's own lock {scheduler.lock_key!r} lets one replica send and the others stand by; set "
            "redbeat_lock_key = None, so that all replicas tick: each tick is still sent once"
        )
    if strangers := sorted(named - set(scheduler.schedule)):
        yield (
            f"singleflight_beat_entries names {', '.join(strangers)}, which the schedule does not have: "
            "look for a misspelt name"
        )
    if remember < A_DAY:
        yield (
            f"the store that was given forgets an entry's last tick after {remember:g} s, and an entry with "
            "a longer period then counts from beat's start; give its URL, or make it with a longer remember"
        )


def of_jitter(entry: Any, options: EntryOptions) -> str | None:
    """Return what is wrong with an entry whose jitter reaches the next planned time."""
    period = shortest_gap(entry.schedule)
    if period is None or options.jitter < period:
        return None
    return (
        f"{entry.name} is sent every {period:g} s, but has jitter={options.jitter:g}: planned times overtake "
        "each other, and some are left out; make it shorter than the time between two"
    )


def of_window(runtime: Runtime, entry: Any) -> str | None:
    """Return what is wrong with an entry whose task may not start as often as the entry is sent."""
    task = runtime.app.tasks.get(entry.task)
    period = shortest_gap(entry.schedule)
    if not isinstance(task, SingletonTask) or period is None:
        return None
    own = (entry.options or {}).get("singleton")
    policy = runtime.policy_of(task, own if own is False or isinstance(own, Singleton) else None)
    if policy is None or policy.window < period:
        return None
    return (
        f"{entry.name} is sent every {period:g} s, but {entry.task} has window={policy.window:g}: ticks "
        "within the window are skipped; make it shorter than the time between two ticks"
    )


def shortest_gap(when: Any) -> float | None:
    """Return the shortest time between two ticks, in seconds; None if a schedule does not tell."""
    if isinstance(when, schedule):
        return float(when.seconds)
    if not isinstance(when, crontab):
        return None
    minutes = sorted(60 * hour + minute for hour in when.hour for minute in when.minute)
    following = [*minutes[1:], minutes[0] + 24 * 60]
    return float(60 * min(later - earlier for earlier, later in zip(minutes, following, strict=True)))


def _has_djangos_beat() -> bool:
    apps: Any = getattr(sys.modules.get("django.apps"), "apps", None)
    return bool(getattr(apps, "ready", False)) and bool(apps.is_installed("django_celery_beat"))
