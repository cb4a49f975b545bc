"""The Celery app that integration tests run; workers and beats get it by `-A tests.integration.app`.

Its surroundings come from the environment, so that one file serves every test. Tasks write what they do
to the body log; a test opens a gate (creates a file) to let a body end, instead of guessing times.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from celery import Celery, Task, shared_task

from tests.support.bodylog import BodyLog
from tests.support.commands import SCHEDULE
from tests.support.sweep import SWEEP


def make_app(broker: str, backend: str) -> Celery:
    """Return an app on this broker; the newest one made is the current app of this thread."""
    app = Celery("integration", broker=broker, backend=backend)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options=SWEEP,
        worker_prefetch_multiplier=1,
        beat_schedule=json.loads(os.environ.get(SCHEDULE, "{}")),
        beat_max_loop_interval=1,
    )
    return app


@shared_task(name="body", bind=True)
def body(self: Task, key: str = "body", seconds: float = 0.0, gate: str = "") -> str:
    """Work for so many seconds, or until the file `gate` exists; a task without singleflight."""
    request = self.request
    with BodyLog.from_environment().body(key, request.id, attempt=request.retries) as working:
        if gate:
            working.work_until(Path(gate))
        working.work(seconds)
    return request.id


app = make_app(
    os.environ.get("CELERY_BROKER_URL", "memory://"),
    os.environ.get("CELERY_RESULT_BACKEND", "cache+memory://"),
)
