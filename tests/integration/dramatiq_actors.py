"""The actors that Dramatiq's integration tests run; workers import this module, publishers call `declare`.

Its surroundings come from the environment. Bodies write what they do to the body log; a test opens a gate
(creates a file) to let a body end, instead of guessing times. A message says with ``singleton=`` what kind
of singleton it is, so that few actors serve many tests.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage, GroupCallbacks
from dramatiq.results import Results

from singleflight import Singleton, current_lease
from singleflight.dramatiq import SingletonActor, install
from tests.support.bodylog import BodyLog, Working

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # Dramatiq 1 says that it finds no Memcached
    from dramatiq.rate_limits.backends import RedisBackend as RateLimits
    from dramatiq.results.backends import RedisBackend

BROKER, STORE, ENABLED = "BROKER_URL", "STORE_URL", "SINGLEFLIGHT_ENABLED"
WAITING = "SINGLEFLIGHT_WAITING"
HEARTBEAT = "HEARTBEAT_TIMEOUT"
"""Milliseconds after which this process takes a silent one for dead."""


def make_broker(url: str, store: str | None = None, enabled: Any = True) -> Any:
    """Return a broker that finds out soon when a worker has died; RabbitMQ needs a store for all else."""
    results = url
    if url.startswith("amqp:"):
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        broker, results = RabbitmqBroker(url=url, confirm_delivery=True), str(store)
    else:
        heartbeat = int(os.environ.get(HEARTBEAT, "3000"))
        broker = RedisBroker(url=url, heartbeat_timeout=heartbeat, maintenance_chance=1_000_000)
    install(broker, store, enabled=enabled, waiting=os.environ.get(WAITING))
    broker.add_middleware(CurrentMessage())
    broker.add_middleware(Results(backend=RedisBackend(url=results)))
    broker.add_middleware(GroupCallbacks(RateLimits(url=results)))
    return broker


def witness(key: str, *, seconds: float = 0.0, gate: str = "", run: str = "") -> Working:
    """Write a run of the current message to the body log, for so long or until the gate opens."""
    message, lease = CurrentMessage.get_current_message(), current_lease()
    attempt, fence = message.options.get("retries", 0), lease.fence if lease else None
    with BodyLog.from_environment().body(
        key, run or message.message_id, attempt=attempt, fence=fence
    ) as working:
        if gate:
            working.work_until(Path(gate))
        working.work(seconds)
    return working


def work(key: str, seconds: float = 0.0, gate: str = "", fails: int = 0) -> str:
    """Work; fail so many times first."""
    witness(key, seconds=seconds, gate=gate)
    if CurrentMessage.get_current_message().options.get("retries", 0) < fails:
        raise RuntimeError("as told")
    return key


def after(_result: Any = None, key: str = "after") -> None:
    """Come after a pipeline's stage or a group."""
    witness(key)


class Actors:
    """The actors, declared on one broker."""

    def __init__(self, broker: Any) -> None:
        options: dict[str, Any] = {"broker": broker, "store_results": True}
        quick = {"max_retries": 3, "min_backoff": 200, "max_backoff": 1_000}
        self.broker = broker
        self.nightly = dramatiq.actor(actor_name="nightly", singleton=True, **options)(nightly)
        self.work = dramatiq.actor(actor_name="work", singleton=False, **options, **quick)(work)
        sent: dict[str, Any] = {"actor_class": SingletonActor, **options, **quick}
        either = Singleton(by="key", at_most_one="waiting_or_running", ttl=3)
        both = Singleton(by="key", at_most_one="waiting_and_running", ttl=3)
        self.either = dramatiq.actor(actor_name="either", singleton=either, **sent)(work)
        self.both = dramatiq.actor(actor_name="both", singleton=both, **sent)(work)
        alone = Singleton(by=(), at_most_one="waiting_or_running", ttl=3)
        self.chained = dramatiq.actor(actor_name="chained", singleton=alone, **sent)(self._chained)
        self.again = dramatiq.actor(actor_name="again", singleton=False, **options, **quick)(self._again)
        self.after = dramatiq.actor(actor_name="after", **options)(after)
        self.urgent = dramatiq.actor(actor_name="urgent", singleton=False, priority=-1, **options)(work)

    def _chained(self, count: int) -> None:
        witness("chained", seconds=0.1)
        if count:
            self.chained.send(count - 1)

    def _again(self, key: str, rounds: int) -> None:
        """Fail once, then send the own message again, with nothing changed but what is left to do."""
        witness(key)
        message = CurrentMessage.get_current_message()
        if not message.options.get("retries"):
            raise RuntimeError("as told")
        if rounds > 1:
            del message.options["retries"]
            self.broker.enqueue(message.copy(args=(key, rounds - 1)))


def nightly(seconds: float = 0.0, key: str = "nightly", gate: str = "") -> str:
    """Work; the lease is that of its name, whatever it is asked."""
    witness(key, seconds=seconds, gate=gate)
    return "done"


if BROKER in os.environ:
    enabled = os.environ.get(ENABLED, "True")
    broker = make_broker(
        os.environ[BROKER], os.environ.get(STORE), "observe" if enabled == "observe" else True
    )
    dramatiq.set_broker(broker)
    actors = Actors(broker)
