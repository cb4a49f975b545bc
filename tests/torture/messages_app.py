"""What the workers under torture run: one Celery app, or one Dramatiq broker, by the environment.

Publishers import it too. What becomes of a message is written where it is decided, by a listener.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from singleflight import Singleton, current_lease
from singleflight.identity import message_id_of
from singleflight.stores import open_store
from tests.torture import mutants
from tests.torture.body import work
from tests.torture.journal import FOLDER, Journal, recorded

if TYPE_CHECKING:
    from celery import Celery

    from singleflight import Event

BROKER, STORE, NAME, RESULTS, TTL = (
    "TORTURE_BROKER", "TORTURE_STORE", "TORTURE_NAME", "TORTURE_RESULTS", "TORTURE_TTL",
)  # fmt: skip
REASONS = ("skipped", "gave_up", "refused")

mutants.apply()
journal = Journal(os.environ.get(FOLDER, "."), os.environ.get(NAME, "publisher"))


def kinds() -> dict[str, Singleton]:
    """Return the kinds of singletons that are sent, by the name of their task."""
    ttl = float(os.environ.get(TTL, "1"))
    return {
        "deferred": Singleton(by="key", ttl=ttl, on_conflict="defer"),
        "skipped": Singleton(by="key", ttl=ttl, on_conflict="skip"),
        "coalesced": Singleton(by="key", ttl=ttl, on_conflict="coalesce"),
        "queued": Singleton(by="key", ttl=ttl, at_most_one="waiting_or_running"),
    }


def tell(event: Event) -> None:
    """Write why a run does not run."""
    if str(event.kind) in REASONS:
        journal.write("fate", run=message_id_of(event.run_id), fate=str(event.kind), why=event.reason)


def body(key: str, seconds: float) -> None:
    """Be the body of every task."""
    lease = current_lease()
    assert lease is not None, key
    work(journal, lease, seconds, heed=False)


def store() -> Any:
    """Return the store, whose requests are written down."""
    return recorded(open_store(os.environ[STORE]), journal)


def make_celery() -> Celery:
    """Return the app, with a task of each kind, acknowledged late."""
    from celery import Celery

    from singleflight.celery import install
    from tests.support.sweep import SWEEP

    broker = os.environ[BROKER]
    app = Celery("torture", broker=broker, backend=os.environ[RESULTS])
    app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1)
    if broker.startswith("redis"):
        app.conf.broker_transport_options = {"visibility_timeout": 5, **SWEEP}
    install(app, store(), listeners=[tell])
    late = {"acks_late": True, "reject_on_worker_lost": True, "max_retries": None}
    for name, kind in kinds().items():
        app.task(name=name, singleton=kind, **late)(_named(name))
    return app


def make_dramatiq() -> dict[str, Any]:
    """Return the actors, one of each kind."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    from singleflight.dramatiq import SingletonActor, install

    url = os.environ[BROKER]
    if url.startswith("amqp:"):
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        broker: Any = RabbitmqBroker(url=url, confirm_delivery=True)
    else:
        broker = RedisBroker(url=url, heartbeat_timeout=3000, maintenance_chance=1_000_000)
    install(broker, store(), listeners=[tell])
    dramatiq.set_broker(broker)
    return {
        name: dramatiq.actor(
            actor_name=name, singleton=kind, actor_class=SingletonActor, max_retries=1000,
            min_backoff=200, max_backoff=1000,
        )(_named(name))
        for name, kind in kinds().items()
    }  # fmt: skip


def _named(name: str) -> Any:
    def run(key: str, seconds: float) -> None:
        body(key, seconds)

    run.__name__ = run.__qualname__ = name
    return run
