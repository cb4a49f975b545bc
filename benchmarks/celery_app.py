"""The app of `celery_overhead`, in one of its variants: what is named in its environment."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

VARIANT = os.environ["BENCH_VARIANT"]
STORE = os.environ["BENCH_STORE"]

app = Celery(
    "bench", broker=os.environ["BENCH_BROKER"], backend=os.environ.get("BENCH_BACKEND"), set_as_current=False
)
app.conf.update(
    task_default_queue=os.environ["BENCH_QUEUE"],
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_ignore_result="BENCH_BACKEND" not in os.environ,
)
options: dict[str, Any] = {}
if VARIANT == "celery-singleton":
    from celery_singleton import Singleton as TheirTask

    app.conf.update(singleton_backend_url=STORE, singleton_lock_expiry=60)
    options = {"base": TheirTask}
elif VARIANT == "celery-once":
    from celery_once import QueueOnce

    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": STORE, "default_timeout": 60},
    }
    options = {"base": QueueOnce, "once": {}}
elif VARIANT.startswith("singleflight"):
    from singleflight import Singleton
    from singleflight.celery import install

    install(app, STORE)
    at_most_one: Any = VARIANT.rpartition(" ")[2]
    options = {"singleton": Singleton(by="number", at_most_one=at_most_one)}


@app.task(name="shop.tasks.recalculate", **options)
def recalculate(number: int) -> None:
    """Do nothing: the variant's own work is what is measured."""


@app.task(name="bench.mark")
def mark(name: str) -> None:
    """Say when the worker got here."""
    redis.Redis.from_url(os.environ["BENCH_BROKER"]).set(f"mark:{name}", time.perf_counter())
