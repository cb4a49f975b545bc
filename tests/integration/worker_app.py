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
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, shared_task
from celery.exceptions import Ignore, Reject, Retry

from singleflight import Singleton, current_lease, lease, try_lease
from singleflight.celery import install
from tests.support.bodylog import BodyLog, starts
from tests.support.sweep import SWEEP
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

STORE, CONF, INSTALL, FOLDER = "STORE_URL", "APP_CONF", "APP_INSTALL", "APP_FOLDER"
PARENT = "APP_PARENT_LEASE"
"""Set: the importing process holds a lease, so that keeper and connections exist before any fork."""
TTL = 2.0


class UnpicklableError(Exception):
    """Raised to see what becomes of an error that no pickle can carry."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()


class Striking:
    """A result that sends its process a signal the first time that a backend writes it down."""

    def __init__(self, key: str, number: int) -> None:
        self.mark = Path(os.environ[FOLDER]) / f"struck-{key}"
        self.number = number

    def __json__(self) -> str:
        """Strike, or be a text."""
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), self.number)
            time.sleep(10)  # a handler interrupts this
        return "struck"


class Lingering:
    """A result that a backend writes down only when a gate opens."""

    def __init__(self, key: str) -> None:
        self.mark = Path(os.environ[FOLDER]) / f"storing-{key}"
        self.gate = Path(os.environ[FOLDER]) / f"{key}-gate"

    def __json__(self) -> str:
        """Leave a trace, wait for the gate, and be a text."""
        self.mark.touch()
        until(self.gate.exists, 60, "the gate")
        return "stored"


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
        broker_transport_options=SWEEP,
        worker_prefetch_multiplier=1,
    )
    app.conf.update(conf or {})
    install(app, store, **(options or {}))
    return app


def work(
    task: Task,
    key: str,
    seconds: float = 0.0,
    gate: str = "",
    then: str = "",
    block: float = 0.0,
    inside: str = "",
    cleanup: str = "",
) -> Any:
    """Be the body of every task here: log, work, end as told."""
    request, mine = task.request, current_lease()
    fence = mine.fence if mine is not None else None
    log = BodyLog.from_environment()
    with log.body(key, request.id, attempt=request.retries, fence=fence) as working, block_of(inside):
        try:
            if block:
                time.sleep(block)  # one system call in the main thread
            if gate:
                working.work_until(Path(gate))
            working.work(seconds)
            return end(task, key, then)
        finally:
            if cleanup:
                working.work_until(Path(cleanup))


def block_of(name: str) -> AbstractContextManager[Any]:
    """Hold one more lease of the same store for a block; without a name, hold none."""
    return lease(os.environ[STORE], name) if name else nullcontext()


def end(task: Task, key: str, then: str) -> Any:
    """End a body in one of many ways; `first-...` only does so when the run has not been redelivered.

    `forward:KEY` publishes a run of that key with this run's own headers.
    """
    if then.startswith("forward:"):
        headers = task.request.headers
        return task.app.tasks["probe"].apply_async((then.removeprefix("forward:"),), headers=headers).id
    again = (task.request.delivery_info or {}).get("redelivered")
    if then.startswith("first-"):
        then = "" if again else then.removeprefix("first-")
    return ENDINGS[then](task, key)


def fail_once(task: Task, key: str) -> str:
    """Fail the first time that this run is here, whatever its message says."""
    if len(starts(BodyLog.from_environment().runs(), task.request.id)) == 1:
        raise ValueError(key)
    return task.request.id


def fail(_: Task, key: str) -> None:
    """Raise what no pickle can carry, or an ordinary error."""
    raise UnpicklableError(key) if key.startswith("unpicklable") else ValueError(key)


def retry(task: Task, countdown: int) -> str:
    """Retry twice."""
    if task.request.retries < 2:
        raise task.retry(countdown=countdown)
    return task.request.id


def retry_quietly(task: Task, *, throw: bool) -> str:
    """Publish one retry and return all the same."""
    if not task.request.retries:
        try:
            task.retry(countdown=1, throw=throw)
        except Retry:
            return "swallowed"
    return task.request.id


def leave(error: Exception) -> None:
    """Tell Celery to ignore or reject."""
    raise error


def replace(task: Task, key: str) -> Any:
    """Have the same task do the rest, under the same id."""
    return task.request.id if task.request.replaced_task_nesting else task.replace(task.si(key))


def tell_lease(*_: object) -> Any:
    """Return what the body sees of its lease."""
    mine = current_lease()
    return None if mine is None else {"key": mine.key, "fence": mine.fence, "held": mine.held}


def nested(task: Task, key: str) -> Any:
    """Call the task itself as a function, and see that its own request is what it was."""
    before = task.request.id
    return [task(key), task.request.id == before]


ENDINGS: dict[str, Callable[[Task, str], Any]] = {
    "": lambda task, _: task.request.id,
    "fail": fail,
    "fail-once": fail_once,
    "exit": lambda *_: sys.exit(3),
    "die": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    "strike-kill": lambda _, key: Striking(key, signal.SIGKILL),
    "strike-term": lambda _, key: Striking(key, signal.SIGTERM),
    "strike-usr1": lambda _, key: Striking(key, signal.SIGUSR1),
    "linger": lambda _, key: Lingering(key),
    "retry": lambda task, _: retry(task, 0),
    "retry-later": lambda task, _: retry(task, 1),
    "retry-unthrown": lambda task, _: retry_quietly(task, throw=False),
    "retry-swallowed": lambda task, _: retry_quietly(task, throw=True),
    "ignore": lambda *_: leave(Ignore()),
    "requeue": lambda *_: leave(Reject("requeue", requeue=True)),
    "reject": lambda *_: leave(Reject("reject", requeue=False)),
    "replace": replace,
    "lease": tell_lease,
    "nested": nested,
    "apply": lambda task, key: task.apply((key,)).result,
    "call-probe": lambda task, key: (task.app.tasks["probe"](key), task.app.tasks["probe"].run(key)),
    "return-request": lambda task, _: {
        name: getattr(task.request, name) for name in ("headers", "properties", "delivery_info", "origin")
    },
    "apply-probe": lambda task, key: task.app.tasks["probe"].apply((key,)).result,
    "child": lambda task, key: task.apply_async((key,)).id,
}


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


class Based(Task):  # type: ignore[misc]
    """A user's own base class, with its own `__call__` and `before_start`."""

    abstract = True
    called = False
    before = False

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Leave a trace."""
        del kwargs
        self.before = True
        with BodyLog.from_environment().body(f"before-{args[0]}", task_id):
            pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Leave a trace, then go on as Celery's documentation says."""
        self.called = True
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.called = self.before = False


@shared_task(name="based", bind=True, base=Based, singleton=Singleton(by="key", ttl=TTL))
def based(self: Based, key: str, **how: Any) -> Any:
    """Tell which of the base class's methods ran before."""
    work(self, key, **how)
    return {"before": self.before, "called": self.called, "held": tell_lease()["held"]}


@shared_task(name="pair", bind=True, singleton=Singleton(by=("a", "b"), ttl=TTL))
def pair(self: Task, a: int, b: int = 2, seconds: float = 0.0) -> Any:
    """Have two parameters that count."""
    return work(self, "pair", seconds=seconds + 0 * (a + b))


@shared_task(name="everything", bind=True, singleton=Singleton(by="*", ttl=TTL))
def everything(self: Task, mapping: dict[Any, Any], pair: list[int], texts: list[str]) -> Any:
    """Have parameters that all count."""
    del mapping, pair, texts
    return work(self, "everything")


app = make_app(
    os.environ.get("CELERY_BROKER_URL", "memory://"),
    os.environ.get("CELERY_RESULT_BACKEND", "cache+memory://"),
    os.environ.get(STORE) or None,
    json.loads(os.environ.get(CONF, "{}")),
    json.loads(os.environ.get(INSTALL, "{}")),
)

parent_lease = try_lease(os.environ[STORE], os.environ[PARENT]) if os.environ.get(PARENT) else None
