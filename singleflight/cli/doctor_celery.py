"""What `doctor -A app` looks at: does a Celery app's set-up fit its singleton tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singleflight.celery.checks import findings
from singleflight.celery.runtime import key_rule
from singleflight.celery.task import SingletonTask
from singleflight.cli.findings import Finding, Level
from singleflight.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.celery.runtime import Runtime

OURS = ("singleflight", "singleflight.celery.beat:SingleflightScheduler")


def of_app(app: Any) -> Iterator[Finding]:
    """Look at an app that `install` was called for."""
    runtime: Runtime = app.singleflight
    tasks = [task for task in app.tasks.values() if isinstance(task, SingletonTask)]
    yield Finding(Level.OK if tasks else Level.WARNING, f"{len(tasks)} singleton tasks")
    if runtime.enabled is not True:
        yield Finding(
            Level.WARNING,
            f"singleflight_enabled={runtime.enabled!r}: nothing is kept from running twice",
            "set it to True",
        )
    for task in tasks:
        yield from _of_task(runtime, task)
    for text in findings(runtime, tasks):
        what, _, remedy = text.rpartition("; ")
        yield Finding(Level.WARNING, what or text, remedy if what else "")
    if runtime.visibility_timeout is not None:
        yield Finding(
            Level.OK,
            f"messages with a countdown or ETA beyond {runtime.visibility_timeout:g} s are delivered more "
            "than once; their copies wait or are dropped",
        )
    yield from _of_beat(app)


def _of_task(runtime: Runtime, task: Any) -> Iterator[Finding]:
    try:
        policy = runtime.policy(task)
        if policy is None:
            return
        for warning in key_rule(runtime.prefix, task, policy).warnings():
            yield Finding(Level.WARNING, warning)
    except ConfigurationError as error:
        yield Finding(Level.ERROR, f"{task.name}: {error}")


def _of_beat(app: Any) -> Iterator[Finding]:
    scheduler = str(app.conf.beat_scheduler)
    if scheduler in OURS:
        yield Finding(Level.OK, "beat shares its ticks: each is sent once, however many replicas there are")
    elif app.conf.beat_schedule:
        yield Finding(
            Level.WARNING,
            f"beat_scheduler is {scheduler}: unless it is started with --scheduler singleflight, every "
            "replica of beat sends every tick",
            "set beat_scheduler = 'singleflight'",
        )
