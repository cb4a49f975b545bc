"""``celery beat --scheduler singleflight``: as many replicas as you like, and each tick is sent once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from singleflight.celery import beat_checks
from singleflight.celery.beat_control import (
    Backfilled,
    BeatEntry,
    backfill,
    entries,
    pause,
    resume,
    trigger,
)
from singleflight.celery.beat_pauses import Pause
from singleflight.celery.beat_schedulers import runtime_of, wrapped_of
from singleflight.celery.scheduler_mixin import SharedTicks
from singleflight.log import logger

if TYPE_CHECKING:
    from celery import Celery

__all__ = [
    "Backfilled",
    "BeatEntry",
    "Pause",
    "SingleflightScheduler",
    "backfill",
    "entries",
    "pause",
    "resume",
    "trigger",
]


def SingleflightScheduler(app: Celery, **options: Any) -> Any:  # noqa: N802 - Celery is told a class
    """Return a scheduler of the configured class that shares its ticks with all replicas.

    Settings: `singleflight_beat_scheduler` (a class or an alias such as ``django``; built in: the app's own
    ``beat_scheduler``, and ``celery.beat:Scheduler`` if that is Celery's default), `singleflight_beat_ttl`
    (seconds, built in 5), and the options of entries, `singleflight_beat_catch_up`,
    `singleflight_beat_catch_up_window` and `singleflight_beat_entries`; see `EntryOptions`.

    Raises:
        ConfigurationError: if `singleflight.celery.install` was not called, or there is no store.
    """
    runtime = runtime_of(app)
    wrapped = wrapped_of(runtime)
    if runtime.enabled is not True:
        logger.warning("singleflight_enabled=%r: every beat replica sends every tick", runtime.enabled)
        return wrapped(app=app, **options)
    scheduler = _sharing(wrapped)(app=app, **options)
    if not options.get("lazy"):  # as Celery makes one to show in its banner
        own = beat_checks.findings(wrapped, scheduler, scheduler.remember, scheduler.named)
        for text in (*own, *scheduler.risks()):
            logger.warning("singleflight: %s", text)
    return scheduler


@cache
def _sharing(wrapped: type) -> type:
    return type(f"Singleflight{wrapped.__name__}", (SharedTicks, wrapped), {"__module__": __name__})
