"""The app of beat tests: entries and settings come from the environment, and a replica can be told to die.

Nothing of the product knows about this: `Mortal` is a scheduler class such as a user may name in
`singleflight_beat_scheduler`, and what it overrides lies between a tick's claim and its confirmation.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import crontab

from singleflight import Singleton
from singleflight.celery import install
from tests.support.beats import DEATH, SCHEDULE, SETTINGS
from tests.support.bodylog import VARIABLE, BodyLog


def _entry(given: dict[str, Any]) -> dict[str, Any]:
    """Turn a schedule that is a list of crontab's five fields into a crontab."""
    when = given["schedule"]
    return {**given, "schedule": crontab(*when) if isinstance(when, list) else when}


app = Celery("beats", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=True)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    beat_max_loop_interval=1,
    beat_schedule={name: _entry(one) for name, one in json.loads(os.environ.get(SCHEDULE, "{}")).items()},
    **json.loads(os.environ.get(SETTINGS, "{}")),
)
install(app)


def _note(task: Task, work: str) -> None:
    with BodyLog.from_environment().body(work, task.request.id):
        pass


if VARIABLE in os.environ:
    # Workers have a body log; beats have none, and know the tasks by name only.

    @app.task(name="once", bind=True, singleton=Singleton(window=30.0, by="work"))
    def once(self: Task, work: str) -> None:
        """Note a run; no second one of the same work may start within 30 seconds."""
        _note(self, work)

    @app.task(name="briefly", bind=True, singleton=Singleton(window=3.0, by="work"))
    def briefly(self: Task, work: str) -> None:
        """Note a run; no second one of the same work may start within 3 seconds."""
        _note(self, work)

    @app.task(name="noted", bind=True)
    def noted(self: Task, *_: object) -> None:
        """Note a run, under the planned time that its message was sent for."""
        _note(self, self.request.headers["singleflight_planned"])

    @app.task(name="failing", bind=True)
    def failing(self: Task, work: str) -> None:
        """Note a run, and fail."""
        _note(self, work)
        raise RuntimeError(work)

    @app.task(name="stuck", bind=True, time_limit=1)
    def stuck(self: Task, work: str) -> None:
        """Note a run, and work until the hard time limit."""
        _note(self, work)
        time.sleep(60)


class _Dying:
    """Ends this process by SIGKILL, once, where a file says: ``claimed <entry>`` or ``published <entry>``."""

    def apply_async(self, entry: Any, **kwargs: Any) -> Any:
        """Die before the publishing, after it, or not."""
        self._die_if(f"claimed {entry.name}")
        result = super().apply_async(entry, **kwargs)  # type: ignore[misc]
        self._die_if(f"published {entry.name}")
        return result

    def _die_if(self, point: str) -> None:
        order = Path(os.environ[DEATH])
        if order.exists() and order.read_text() == point:
            try:
                order.unlink()  # the one who removes it is the one who dies
            except FileNotFoundError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


class Mortal(_Dying, Scheduler):
    """Celery's own scheduler, mortal."""


class MortalPersistent(_Dying, PersistentScheduler):
    """Celery's scheduler with a file, mortal."""
