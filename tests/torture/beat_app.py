"""The app of beats under torture: `celery -A tests.torture.beat_app beat --scheduler singleflight`."""

from __future__ import annotations

import json
import os

from celery import Celery

from singleflight.celery import install
from tests.support.commands import SCHEDULE
from tests.torture import messages_app

app = Celery("beats", broker=os.environ[messages_app.BROKER])
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    beat_max_loop_interval=1,
    beat_schedule=json.loads(os.environ.get(SCHEDULE, "{}")),
)
install(app, messages_app.store())
