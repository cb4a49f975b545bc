"""Which scheduler class an app's beats wrap, and one of it to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.beat import PersistentScheduler, Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from singleflight.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

    from singleflight.celery.runtime import Runtime

OURS = "SingleflightScheduler"
"""The name of what Celery is told to use."""


def runtime_of(app: Celery) -> Runtime:
    """Return what `install` left with an app.

    Raises:
        ConfigurationError: if `singleflight.celery.install` was not called.
    """
    runtime: Runtime | None = getattr(app, "singleflight", None)
    if runtime is None:
        raise ConfigurationError(
            f"the app {app.main!r} has no leases: call singleflight.celery.install(app) where the app is made"
        )
    return runtime


def wrapped_of(runtime: Runtime) -> Any:
    """Return the class that is to share its ticks.

    Raises:
        ConfigurationError: if that is ours.
    """
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    given = runtime.setting("beat_scheduler")
    if given is None:
        own = symbol_by_name(runtime.app.conf.beat_scheduler or Scheduler, aliases=aliases)
        # Celery's default keeps last runs in a file of each replica; here the store does.
        return Scheduler if own is PersistentScheduler or _is_ours(own) else own
    wrapped = symbol_by_name(given, aliases=aliases)
    if _is_ours(wrapped):
        raise ConfigurationError(
            "singleflight_beat_scheduler names the class that is wrapped, not singleflight itself; leave it "
            "out, or write 'celery.beat:PersistentScheduler' or the like"
        )
    return wrapped


def scheduler_of(runtime: Runtime) -> Any:
    """Return a scheduler of that class, to read its schedule and to publish; it changes no database."""
    wrapped = wrapped_of(runtime)
    if issubclass(wrapped, PersistentScheduler):
        wrapped = Scheduler  # a file is its beat's; what the configuration says is the same
    scheduler = wrapped(app=runtime.app, lazy=True)
    if wrapped.setup_schedule is Scheduler.setup_schedule:
        scheduler.setup_schedule()
    return scheduler


def _is_ours(found: Any) -> bool:
    return getattr(found, "__name__", "") == OURS
