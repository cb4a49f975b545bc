"""The app of beat's benchmarks: each tick that beat sends is noted in a list: when, by whom, how late."""

from __future__ import annotations

import ast
import os
import time
from typing import Any

import redis
from celery import Celery
from celery.beat import Scheduler
from redbeat import RedBeatScheduler

from singleflight.celery import install

BROKER, BEAT = os.environ["BENCH_BROKER"], os.environ["BENCH_BEAT"]
ENTRIES = int(os.environ.get("BENCH_ENTRIES", "1"))
RATE = float(os.environ.get("BENCH_RATE", "1"))
"""Ticks a second, of all entries together."""
FIRST = 1.0 if ENTRIES == 1 else 40.0
"""Seconds from the start to the first tick; then follow those of the other entries, no two at once."""


class Notes:
    """What goes before a scheduler's class."""

    def apply_async(self, entry: Any, *args: Any, **options: Any) -> Any:
        """Send a tick, and note how long ago it was due."""
        due = entry.last_run_at + entry.schedule.run_every
        sent = super().apply_async(entry, *args, **options)  # type: ignore[misc]
        late = entry.default_now() - due
        notes.rpush("ticks", f"{time.time()} {BEAT} {late.total_seconds()}")
        return sent


class Noting(Notes, Scheduler):
    """Celery's scheduler."""


app = Celery("beats", broker=BROKER, set_as_current=False)
app.conf.update(
    beat_schedule={
        f"tick-{number}": {"task": "tick", "schedule": FIRST + number / RATE} for number in range(ENTRIES)
    },
    redbeat_redis_url=BROKER,
    singleflight_beat_scheduler=Noting,
    **ast.literal_eval(os.environ.get("BENCH_SETTINGS", "{}")),
)
install(app, BROKER)
notes = redis.Redis.from_url(BROKER)


class NotingRedBeat(Notes, RedBeatScheduler):  # type: ignore[misc]
    """redbeat's."""
