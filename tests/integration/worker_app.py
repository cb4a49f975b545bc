"""The Celery app of the worker tests: singleton tasks whose bodies do what their arguments say.

Everything comes from the environment, so that workers and the publishing test have the same app. A body
writes to the body log, works, and then ends in the way that `then` names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from singleflight import Singleton, current_lease
from singleflight.celery import install
from tests.support.bodylog import BodyLog

STORE, CONF, INSTALL = "STORE_URL", "APP_CONF", "APP_INSTALL"
TTL = 2.0


class UnpicklableError(Exception):
    """Raised to see what becomes of an error that no pickle can carry."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()


def make_app(
    broker: str,
    backend: str,
    store: str | None,
    conf: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
) -> Celery:
    """Return an app with singleflight installed; shared tasks below belong to each."""
    app = Celery("worker_tests", broker=broker, backend=backend)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        # A message fetched by a worker that is then killed must not wait for the sweep's default 100 s.
        broker_transport_options={"unacked_restore_interval": 1, "unacked_restore_throttle": 1},
        worker_prefetch_multiplier=1,
        **(conf or {}),
    )
    install(app, store, **(options or {}))
    return app


def work(
    task: Task, key: str, seconds: float = 0.0, gate: str = "", then: str = "", block: float = 0.0
) -> Any:
    """Be the body of every task here: log, work, end as told."""
    request, lease = task.request, current_lease()
    fence = lease.fence if lease is not None else None
    with BodyLog.from_environment().body(key, request.id, attempt=request.retries, fence=fence) as working:
        if block:
            time.sleep(block)  # one system call in the main thread
        if gate:
            working.work_until(Path(gate))
        working.work(seconds)
        return end(task, key, then)


def end(task: Task, key: str, then: str) -> Any:
    """End a body in one of many ways; `first-...` only does so when the run has not been redelivered."""
    request = task.request
    if then.startswith("first-"):
        if request.delivery_info.get("redelivered"):
            return request.id
        then = then.removeprefix("first-")
    match then:
        case "fail":
            raise ValueError(key)
        case "unpicklable":
            raise UnpicklableError(key)
        case "exit":
            sys.exit(3)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "retry":
            if request.retries < 2:
                raise task.retry(countdown=0)
        case "retry-later":
            if request.retries < 2:
                raise task.retry(countdown=1)
        case "ignore":
            raise Ignore
        case "requeue":
            raise Reject(key, requeue=True)
        case "reject":
            raise Reject(key, requeue=False)
        case "replace":
            if not request.replaced_task_nesting:
                return task.replace(task.si(key))
        case "nested":
            # A direct call from inside: a plain call, with a request of its own.
            return [task(key), task.request.id == request.id]
        case "apply":
            return task.apply((key,)).get()
        case "child":
            child = task.apply_async((key,))
            return child.id
        case "lease":
            lease = current_lease()
            return None if lease is None else [lease.key, lease.run_id, lease.fence, lease.held]
        case "held":
            lease = current_lease()
            return lease is not None and lease.held
        case "swallow-soft":
            try:
                time.sleep(30)
            except SoftTimeLimitExceeded:
                return "soft limit swallowed"
    return request.id


@shared_task(name="plain", bind=True)
def plain(self: Task, key: str, **how: Any) -> Any:
    """No singleton."""
    return work(self, key, **how)


@shared_task(name="probe", bind=True, max_retries=None, singleton=Singleton(by="key", ttl=TTL))
def probe(self: Task, key: str, **how: Any) -> Any:
    """Be a singleton by key, acknowledged early, as is Celery's way."""
    return work(self, key, **how)


@shared_task(
    name="late",
    bind=True,
    max_retries=None,
    acks_late=True,
    reject_on_worker_lost=True,
    singleton=Singleton(by="key", ttl=TTL),
)
def late(self: Task, key: str, **how: Any) -> Any:
    """Be a singleton by key whose message outlives a crash."""
    return work(self, key, **how)


@shared_task(
    name="autoretry",
    bind=True,
    autoretry_for=(ValueError,),
    max_retries=3,
    default_retry_delay=1,
    singleton=Singleton(by="key", ttl=TTL),
)
def autoretry(self: Task, key: str, fails: int = 2, **how: Any) -> Any:
    """Fail as often as told, then succeed."""
    return work(self, key, then="fail" if self.request.retries < fails else "", **how)


@shared_task(
    name="tracked", bind=True, acks_late=True, track_started=True, singleton=Singleton(by="key", ttl=TTL)
)
def tracked(self: Task, key: str, **how: Any) -> Any:
    """Tell when it has started."""
    return work(self, key, **how)


app = make_app(
    os.environ.get("CELERY_BROKER_URL", "memory://"),
    os.environ.get("CELERY_RESULT_BACKEND", "cache+memory://"),
    os.environ.get(STORE) or None,
    json.loads(os.environ.get(CONF, "{}")),
    json.loads(os.environ.get(INSTALL, "{}")),
)
