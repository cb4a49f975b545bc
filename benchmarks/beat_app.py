"""The app of beat's benchmarks: each message that beat sends is noted in a list, with when and by whom."""

from __future__ import annotations

import ast
import os
import time
from typing import Any

import redis
from celery import Celery
from celery.signals import before_task_publish

from singleflight.celery import install

BROKER, BEAT = os.environ["BENCH_BROKER"], os.environ["BENCH_BEAT"]
app = Celery("beats", broker=BROKER, set_as_current=False)
app.conf.update(
    beat_schedule={"tick": {"task": "tick", "schedule": 1.0}},
    redbeat_redis_url=BROKER,
    **ast.literal_eval(os.environ.get("BENCH_SETTINGS", "{}")),
)
install(app, BROKER)
notes = redis.Redis.from_url(BROKER)


@before_task_publish.connect(weak=False)
def note(**_: Any) -> None:
    """Note a tick."""
    notes.rpush("ticks", f"{time.time()} {BEAT}")
