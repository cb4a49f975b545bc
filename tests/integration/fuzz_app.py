"""What the fuzzed workers run: singletons of each kind, as tasks of Celery and as actors of Dramatiq."""

from __future__ import annotations

import os
import time
from typing import Any

import dramatiq
from celery import Celery, Task
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

from singleflight import Singleton, current_lease
from singleflight.celery import install
from singleflight.dramatiq import SingletonActor
from singleflight.dramatiq import install as install_dramatiq
from tests.support.bodylog import BodyLog

BROKER, STORE, DRAMATIQ = "CELERY_BROKER_URL", "STORE_URL", "FUZZ_DRAMATIQ"
WORK = 0.003
PATIENCE: dict[str, Any] = {"ttl": 5, "give_up_after": 2}
KINDS: dict[str, Singleton] = {
    "fuzz.skip": Singleton(by="key", ttl=5),
    "fuzz.defer": Singleton(by="key", on_conflict="defer", **PATIENCE),
    "fuzz.coalesce": Singleton(by="*", on_conflict="coalesce", **PATIENCE),
    "fuzz.raise": Singleton(by="key", on_conflict="raise", ttl=5),
    "fuzz.once": Singleton(by="key", at_most_one="waiting_or_running", ttl=5),
    "fuzz.window": Singleton(by="key", window=0.05, skip_result="skipped", ttl=5),
}


def witness(run: str) -> None:
    """Write a body to the body log, under the key of its lease."""
    lease = current_lease()
    key, fence = (f"unleased:{run}", None) if lease is None else (lease.key, lease.fence)
    with BodyLog.from_environment().body(key, run, fence=fence):
        time.sleep(WORK)


def body(self: Task, key: Any, n: Any = 0) -> None:  # noqa: ARG001 - what the key is made of
    """Be the body of every task."""
    witness(str(self.request.id))


def make_app(broker: str, store: str) -> Celery:
    """Return the Celery app."""
    app = Celery("fuzz", broker=broker, backend=broker)
    app.conf.update(
        broker_connection_retry_on_startup=True, worker_prefetch_multiplier=16, result_expires=300
    )
    install(app, store)
    for number, (name, singleton) in enumerate(KINDS.items()):
        app.task(name=name, bind=True, shared=False, acks_late=bool(number % 2), singleton=singleton)(body)
    return app


def act(key: Any, n: Any = 0) -> None:  # noqa: ARG001 - what the key is made of
    """Be the body of every actor."""
    witness(str(CurrentMessage.get_current_message().message_id))


def make_broker(url: str, store: str) -> Any:
    """Return the Dramatiq broker with its actors declared."""
    broker = RedisBroker(url=url, maintenance_chance=1)
    install_dramatiq(broker, store)
    broker.add_middleware(CurrentMessage())
    options = {
        "broker": broker,
        "actor_class": SingletonActor,
        "max_retries": 1,
        "min_backoff": 10,
        "max_backoff": 50,
    }
    for name, singleton in KINDS.items():
        dramatiq.actor(actor_name=name, singleton=singleton, **options)(act)
    return broker


if DRAMATIQ in os.environ:
    broker = make_broker(os.environ[DRAMATIQ], os.environ[STORE])
    dramatiq.set_broker(broker)
elif BROKER in os.environ:
    app = make_app(os.environ[BROKER], os.environ[STORE])
