"""Random, mutated and forged messages through real workers: none ends, and no key but their own changes.

What ends a worker without singleflight as well is left out: headers that Celery's main process itself takes
apart without a look (``expires`` and ``stamps`` of other types, an id that is no UTF-8, a body that is no
call, callbacks that are no signatures), the time limit that a message may set for itself, and in Dramatiq
the options ``throws`` and a queue that nobody consumes. `SINGLEFLIGHT_CHAOS=1` sends 20,000 messages.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import dramatiq
import psutil
import pytest
import redis
from dramatiq.brokers.redis import RedisBroker

from singleflight.keys import lease_key, stem
from singleflight.lease import Outcome
from singleflight.stores import open_store
from singleflight.stores.base import Claim, Release
from tests.integration.fuzz_app import DRAMATIQ, KINDS, STORE, make_app
from tests.support.bodylog import VARIABLE, BodyLog, overlaps
from tests.support.dramatiq_nodes import DramatiqWorker
from tests.support.forged import Forger
from tests.support.garbled import Garbler, unleased
from tests.support.nodes import WorkerContainer
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.child import Child

FULL = bool(os.environ.get("SINGLEFLIGHT_CHAOS"))
MESSAGES = int(os.environ.get("SINGLEFLIGHT_FUZZ_MESSAGES", "20000" if FULL else "500"))
SEED = int(os.environ.get("SINGLEFLIGHT_FUZZ_SEED", "1"))
KEYS = 40
AHEAD = 1000
"""Messages that may be in the queue before more are sent."""
TASKS = list(KINDS)
LONG = 86_400_000
MODULE = "tests.integration.fuzz_app"


class Bystanders:
    """Records of others, which no message may touch: held, ended, in their window, waited for."""

    def __init__(self, url: str) -> None:
        names = ("nightly", "held", "shop.report")
        self.keys = [lease_key("singleflight", name) for name in names]
        self._url = url
        with closing(open_store(url)) as store:
            for number, key in enumerate(self.keys):
                store.claim(Claim(key, f"run-{number}", 0, f"token-{number}", LONG, window_ms=LONG))
                store.queue(key, f"waits-{number}", ttl_ms=LONG, running_too=False)
            store.release(Release(self.keys[0], "run-0", 0, "token-0", Outcome.FINISHED))
        self.named = [*names, *self.keys, "run-0", "run-1", "waits-1"]
        self.before = self._read()

    def changed(self) -> list[str]:
        """Return which of them are not as they were, byte by byte."""
        return [key for key, value in self._read().items() if value != self.before[key]]

    def strangers(self) -> list[str]:
        """Return keys that belong neither to them nor to the tasks that messages were for."""
        stems = tuple(stem("singleflight", task) for task in TASKS)
        with redis.Redis.from_url(self._url, decode_responses=True) as client:
            return [
                key for key in client.scan_iter("*", count=1000) if not key.startswith((*stems, *self.keys))
            ]

    def _read(self) -> dict[str, bytes]:
        with redis.Redis.from_url(self._url) as client:
            return {key: client.get(key) or b"" for key in self.keys}


@pytest.fixture
def servers() -> Iterator[tuple[ValkeyServer, ValkeyServer]]:
    """Run a broker and a store of its own."""
    with ValkeyServer() as broker, ValkeyServer() as store:
        yield broker, store


def judge(log: BodyLog, bystanders: Bystanders, free: set[str], sent: int, began: float, what: str) -> None:
    """Say what the workers' bodies and the store have come to, and print the numbers."""
    runs = log.runs()
    bare = [run for run in runs if run.fence is None and run.run not in free]
    both = overlaps([run for run in runs if run.fence is not None])
    changed, strangers = bystanders.changed(), bystanders.strangers()
    print(  # noqa: T201 - what a test measured is what it is for
        f"\n{what}: {sent} messages (seed {SEED}) in {time.monotonic() - began:.0f} s, {len(runs)} bodies of "
        f"{len({run.key for run in runs if run.fence is not None})} keys, {len(both)} overlaps, "
        f"{len(bare)} without a lease, {len(changed)} other keys changed, {len(strangers)} made"
    )
    assert not both
    assert not bare
    assert not changed
    assert not strangers
    assert len(runs) > sent / 50


def pump(sent: int, send: Callable[[], None], queued: Callable[[], int], alive: Callable[[], None]) -> None:
    """Send so many messages, as fast as the worker takes them, and wait until it has taken all."""
    for number in range(sent):
        send()
        if number % 200 == 0:
            until(lambda: alive() or queued() < AHEAD, 300, "the worker to keep up", every=0.2)
    until(lambda: alive() or queued() == 0, 300, "an empty queue", every=0.2)


@pytest.mark.timeout(3600 if FULL else 120)
def test_no_message_ends_a_celery_worker_nor_changes_another_key(
    servers: tuple[ValkeyServer, ValkeyServer], tmp_path: Path
) -> None:
    """Main process and pool are the same at the end, and no two bodies of one key have run at once."""
    broker, store = servers
    bystanders, log = Bystanders(store.url), BodyLog(tmp_path / "bodies.log")
    app = make_app(broker.url, store.url)
    env = {
        "CELERY_BROKER_URL": broker.url,
        "CELERY_RESULT_BACKEND": broker.url,
        STORE: store.url,
        VARIABLE: str(log.path),
    }
    worker = WorkerContainer(tmp_path, env, app=MODULE, concurrency=3)
    garbler, free, began = Garbler(SEED, bystanders.named), set[str](), time.monotonic()
    client = redis.Redis.from_url(broker.url)
    try:
        worker.ready()
        pool = until(lambda: len(found := worker.child.children()) >= 3 and found, what="the pool")

        def alive() -> None:
            assert worker.child.alive, worker.logs()[-3000:]
            assert worker.child.children() == pool, worker.logs()[-3000:]

        with Forger(app) as forger:
            pump(
                MESSAGES,
                lambda: free.update(forge(forger, garbler)),
                lambda: int(client.llen("celery")),  # type: ignore[arg-type]
                alive,
            )
        after = [app.tasks[name].apply_async((f"after-{name}", 0)).id for name in TASKS]
        until(lambda: {run.run for run in log.runs()} >= set(after), 60, "ordinary runs afterwards")
        alive()
        judge(log, bystanders, free, MESSAGES, began, "Celery")
    finally:
        worker.child.kill()
        client.close()
        app.close()


HEADERS = ("retries", "replaced_task_nesting", "parent_id", "root_id", "origin", "group_index", "unknown")


def forge(forger: Forger, garbler: Garbler) -> list[str]:
    """Publish one message; return its id if it asked for no lease, as it may."""
    task, run_id = garbler.random.choice(TASKS), garbler.run_id()
    if garbler.chance(0.07):
        unreadable: tuple[dict[str, Any], ...] = (
            {"body": b"\xff{no"},
            {"content_type": "application/x-python-serialize"},
        )
        name = garbler.random.choice((task, f"fuzz.{garbler.junk(0)}"))
        forger.publish(name, run_id=run_id, **garbler.random.choice(unreadable))
        return []
    args, kwargs = garbler.arguments(KEYS)
    headers: dict[str, Any] = garbler.marks() if garbler.chance(0.3) else {}
    if garbler.chance(0.5):
        headers["singleflight"] = garbler.header(run_id, task)
    headers |= {name: garbler.junk() for name in HEADERS if garbler.chance(0.08)}
    headers |= {name: garbler.moment() for name in ("expires", "eta") if garbler.chance(0.04)}
    embed = garbler.marks() if garbler.chance(0.3) else {}
    if garbler.chance(0.05):
        embed["singleflight"] = headers["singleflight"] = garbler.header(run_id, task)
    asks = unleased(headers.get("singleflight"), run_id, task)
    names = ("retries", "delivery_info", "args", "kwargs", *(() if asks else ("id",)))
    embed |= {name: garbler.junk() for name in names if garbler.chance(0.03)}
    forger.publish(task, args, kwargs, run_id=run_id, headers=headers, embed=embed)
    return [run_id] if asks else []


@pytest.mark.timeout(3600 if FULL else 120)
def test_no_message_ends_a_dramatiq_worker_nor_changes_another_key(
    servers: tuple[ValkeyServer, ValkeyServer], tmp_path: Path
) -> None:
    """Processes and threads are the same at the end, and no two bodies of one key have run at once."""
    broker, store = servers
    bystanders, log = Bystanders(store.url), BodyLog(tmp_path / "bodies.log")
    env = {DRAMATIQ: broker.url, STORE: store.url, VARIABLE: str(log.path)}
    worker: Child = DramatiqWorker(tmp_path, env, module=MODULE, threads=4)
    bare = RedisBroker(url=broker.url, middleware=[])
    bare.declare_queue("default")
    garbler, free, began = Garbler(SEED, bystanders.named), set[str](), time.monotonic()
    try:
        worker.wait_ready()
        processes = worker.children()

        def alive() -> None:
            assert worker.alive, worker.log()[-3000:]
            assert worker.children() == processes, worker.log()[-3000:]

        def threads() -> int:
            return sum(psutil.Process(pid).num_threads() for pid in processes)

        before = threads()
        pump(
            MESSAGES,
            lambda: free.update(mangle(bare, garbler)),
            lambda: int(bare.client.llen("dramatiq:default")),
            alive,
        )
        after = [message(name, [f"after-{name}", 0], {}, {}, str(uuid.uuid4())) for name in TASKS]
        for one in after:
            bare.enqueue(one)
        ids = {one.message_id for one in after}
        until(lambda: {run.run for run in log.runs()} >= ids, 60, "ordinary runs afterwards")
        alive()
        assert threads() >= before
        judge(log, bystanders, free, MESSAGES, began, "Dramatiq")
    finally:
        worker.kill()
        bare.client.close()


def message(
    actor: str, args: Any, kwargs: Any, options: dict[str, Any], message_id: str
) -> dramatiq.Message[Any]:
    """Return a message as anybody may write it."""
    return dramatiq.Message(
        queue_name="default",
        actor_name=actor,
        args=args,
        kwargs=kwargs,
        options=options,
        message_id=message_id,
    )


OPTIONS = ("retries", "max_retries", "min_backoff", "max_age", "pipe_target", "store_results", "unknown")


def mangle(bare: RedisBroker, garbler: Garbler) -> list[str]:
    """Send one message; return its id if it asked for no lease, as it may."""
    actor, run_id = garbler.random.choice(TASKS), garbler.run_id()
    args, kwargs = garbler.arguments(KEYS)
    args = args if isinstance(args, list | str | dict) else []  # Dramatiq itself takes nothing else
    options: dict[str, Any] = {}
    if garbler.chance(0.02):
        actor = f"fuzz.{garbler.junk(0)}"
    if garbler.chance(0.6):
        options["singleflight"] = garbler.header(run_id, actor)
    if garbler.chance(0.1):
        choices = ("2026-01-31T06:00:00+00:00", "9999-12-31T23:59:59+00:00", garbler.junk())
        options["singleflight_occurrence"] = garbler.random.choice(choices)
    options |= {name: garbler.junk() for name in OPTIONS if garbler.chance(0.06)}
    bare.enqueue(message(actor, args, kwargs, json.loads(json.dumps(options)), run_id))
    return [run_id] if unleased(options.get("singleflight"), run_id, actor) else []
