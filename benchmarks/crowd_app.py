"""The app of `crowd`: tasks of one key that all must run, in the variant named in its environment."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery, Task

VARIANT = os.environ["BENCH_VARIANT"]
BODY = float(os.environ["BENCH_BODY"])

app = Celery("bench", broker=os.environ["BENCH_BROKER"], set_as_current=False)
app.conf.update(
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
)
marks = redis.Redis.from_url(os.environ["BENCH_STORE"])


def work() -> None:
    """Take a while, and say when it is over."""
    time.sleep(BODY)
    marks.rpush("ended", time.time())


options: dict[str, Any] = {}
if VARIANT.startswith("singleflight"):
    from singleflight import Singleton
    from singleflight.celery import install

    waiting = "line" if VARIANT.endswith("in line") else "countdown"
    install(app, os.environ["BENCH_STORE"], waiting=waiting)
    options = {"singleton": Singleton(on_conflict="defer")}


@app.task(name="one", bind=True, max_retries=None, **options)
def one(self: Task) -> None:
    """Run alone, by one way or the other."""
    if VARIANT.startswith("singleflight"):
        work()
    elif VARIANT.startswith("lock and retry"):
        lock = marks.lock("crowd", timeout=30, blocking=False)
        if not lock.acquire():
            raise self.retry(countdown=1)
        try:
            work()
        finally:
            lock.release()
    else:
        with marks.lock("crowd", timeout=30):
            work()


@app.task(name="other")
def other(sent: float) -> None:
    """Say how long a task of no key has waited."""
    marks.rpush("waited", time.time() - sent)
