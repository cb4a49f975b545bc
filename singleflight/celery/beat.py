"""``celery beat --scheduler singleflight``: as many replicas as you like, and each tick is sent once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from celery.beat import PersistentScheduler, Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from singleflight.celery import beat_checks
from singleflight.celery.scheduler_mixin import SharedTicks
from singleflight.errors import ConfigurationError
from singleflight.log import logger

if TYPE_CHECKING:
    from celery import Celery

    from singleflight.celery.runtime import Runtime


def SingleflightScheduler(app: Celery, **options: Any) -> Any:  # noqa: N802 - Celery is told a class
    """Return a scheduler of the configured class that shares its ticks with all replicas.

    Settings: `singleflight_beat_scheduler` (a class or an alias such as ``django``; built in: the app's own
    ``beat_scheduler``, and ``celery.beat:Scheduler`` if that is Celery's default), `singleflight_beat_ttl`
    (seconds, built in 5), and the options of entries, `singleflight_beat_catch_up`,
    `singleflight_beat_catch_up_window` and `singleflight_beat_entries`; see `EntryOptions`.

    Raises:
        ConfigurationError: if `singleflight.celery.install` was not called, or there is no store.
    """
    runtime: Runtime | None = getattr(app, "singleflight", None)
    if runtime is None:
        raise ConfigurationError(
            f"the app {app.main!r} has no leases: call singleflight.celery.install(app) where the app is made"
        )
    wrapped = _wrapped(runtime)
    if runtime.enabled is not True:
        logger.warning("singleflight_enabled=%r: every beat replica sends every tick", runtime.enabled)
        return wrapped(app=app, **options)
    scheduler = _sharing(wrapped)(app=app, **options)
    if not options.get("lazy"):  # as Celery makes one to show in its banner
        own = beat_checks.findings(wrapped, scheduler, scheduler.remember, scheduler.named)
        for text in (*own, *scheduler.risks()):
            logger.warning("singleflight: %s", text)
    return scheduler


def _wrapped(runtime: Runtime) -> Any:
    """Return the class that is to share its ticks."""
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    given = runtime.setting("beat_scheduler")
    if given is None:
        own = symbol_by_name(runtime.app.conf.beat_scheduler or Scheduler, aliases=aliases)
        # Celery's default keeps last runs in a file of each replica; here the store does.
        return Scheduler if own in (SingleflightScheduler, PersistentScheduler) else own
    wrapped = symbol_by_name(given, aliases=aliases)
    if wrapped is SingleflightScheduler:
        raise ConfigurationError(
            "singleflight_beat_scheduler names the class that is wrapped, not singleflight itself; leave it "
            "out, or write 'celery.beat:PersistentScheduler' or the like"
        )
    return wrapped


@cache
def _sharing(wrapped: type) -> type:
    return type(f"Singleflight{wrapped.__name__}", (SharedTicks, wrapped), {"__module__": __name__})
