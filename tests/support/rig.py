"""A rig for worker tests: broker, separate store, real workers and the publisher's app, shared by a file.

Workers take a second or two to start, so tests of one file share them and use a key each.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self

import redis

from singleflight.celery.delivery import HEADER
from singleflight.celery.marks import unmarked
from singleflight.identity import message_id_of
from singleflight.stores import open_store
from singleflight.stores.base import INFINITE, Record
from singleflight.stores.base import Run as Remembered
from singleflight.stores.lining import Lining
from singleflight.tasks.message import Carried
from tests.integration import worker_app
from tests.support.bodylog import VARIABLE, BodyLog, Run, of_key
from tests.support.nodes import WorkerContainer
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from celery.canvas import Signature
    from celery.result import AsyncResult

APP = "tests.integration.worker_app"


class Rig:
    """Servers, workers and a publisher that belong together; a context manager that ends them all.

    Args:
        folder: for logs.
        conf: Celery settings of workers and publisher.
        install: keywords of `singleflight.celery.install`.
        store: the store's URL instead of the server's own; "" for none at all.
        store_server: a running server that holds the leases, and outlives the rig.
        broker_url: another broker; the rig's own server then keeps results only.
    """

    def __init__(
        self,
        folder: Path,
        *,
        conf: dict[str, Any] | None = None,
        install: dict[str, Any] | None = None,
        store: str | None = None,
        store_server: ValkeyServer | None = None,
        broker_url: str = "",
    ) -> None:
        self.folder = folder
        self.conf, self.install = conf or {}, install or {}
        self.broker, self.store = ValkeyServer(), store_server or ValkeyServer()
        self.broker_url = broker_url or self.broker.url
        self._own_store = store_server is None
        self.store_url = self.store.url if store is None else store
        self.log = BodyLog(folder / "bodies.log")
        self.workers: list[WorkerContainer] = []

    def __enter__(self) -> Self:
        try:
            self.broker.start()
            if self._own_store:
                self.store.start()
            url = self.broker.url
            self.app = worker_app.make_app(
                self.broker_url, url, self.store_url or None, self.conf, self.install
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for worker in self.workers:
                worker.child.kill()
        finally:
            consumer = getattr(self.app.backend, "result_consumer", None) if hasattr(self, "app") else None
            if consumer is not None:
                consumer.stop()
            self.broker.close()
            if self._own_store:
                self.store.close()
            if hasattr(self, "app"):
                self.app.close()

    def worker(self, *, ready: bool = True, **options: Any) -> WorkerContainer:
        """Start one more worker; takes what `WorkerContainer` takes."""
        env = {
            "CELERY_BROKER_URL": self.broker_url,
            "CELERY_RESULT_BACKEND": self.broker.url,
            worker_app.STORE: self.store_url,
            worker_app.CONF: json.dumps(self.conf),
            worker_app.INSTALL: json.dumps(self.install),
            worker_app.FOLDER: str(self.folder),
            VARIABLE: str(self.log.path),
            **options.pop("env", {}),
        }
        options.setdefault("name", f"worker{len(self.workers) + 1}")
        options.setdefault("app", APP)
        worker = WorkerContainer(self.folder, env, **options)
        self.workers.append(worker)
        if ready:
            worker.ready()
        return worker

    def start(self, count: int, **options: Any) -> Self:
        """Start several workers and wait for all."""
        started = [self.worker(ready=False, **options) for _ in range(count)]
        for worker in started:
            worker.ready()
        return self

    def send(self, name: str, key: str, options: dict[str, Any] | None = None, **how: Any) -> AsyncResult:
        """Publish a task with this key; `how` goes to its body, `options` to `apply_async`."""
        result: AsyncResult = self.app.tasks[name].apply_async((key,), how, **(options or {}))
        return result

    def copy(self, signature: Signature, run: str) -> None:
        """Publish a message of a run once more, as a broker does that delivers it again."""
        known = {r.run_id for record in self.records().values() for r in record.runs}
        marks = [id_[len(run) + 1 :] for id_ in known if id_ != run and message_id_of(id_) == run]
        header = Carried(mark=marks[0] if marks else None).write(run, signature.task)
        with unmarked.on():
            signature.clone().set(task_id=run, headers={HEADER: header}).apply_async()

    def runs(self, key: str) -> list[Run]:
        """Return all executions of a key so far."""
        return of_key(self.log.runs(), key)

    def wait_start(self, key: str, count: int = 1, timeout: float = 30) -> list[Run]:
        """Wait until so many bodies of a key have started, and return them all."""
        return until(
            lambda: len(runs := self.runs(key)) >= count and runs, timeout, f"{count} starts of {key}"
        )

    def states(self, results: list[AsyncResult], timeout: float = 60) -> list[str]:
        """Wait until all results are ready and return their states."""
        until(lambda: all(r.ready() for r in results), timeout, "all results", every=0.1)
        return [r.state for r in results]

    @property
    def store_client(self) -> redis.Redis:
        """A new client of the store's server."""
        return redis.Redis.from_url(self.store.url, decode_responses=True)

    def records(self) -> dict[str, Record]:
        """Return every record of the store by key."""
        with self.store_client as client, closing(open_store(self.store.url)) as store:
            keys = client.scan_iter("*", count=1000, _type="string")
            return {key: look.record for key in keys if (look := store.peek(key))}

    def record_of(self, run: str) -> Record:
        """Return the record that remembers a run; an empty one if none does."""
        records = self.records().values()
        return next((r for r in records if message_id_of(r.run_id) == run or remembered(r, run)), Record())

    def final(self, run: str) -> bool:
        """Whether the store has it on record that a run has ended for good."""
        found = remembered(self.record_of(run), run)
        return found is not None and (found.attempt, found.ended) == (INFINITE, True)

    def said(self, text: str) -> bool:
        """Whether any worker has logged a text."""
        return any(text in worker.logs() for worker in self.workers)

    def held(self, run: str) -> bool:
        """Whether a run's lease is alive, by the store's word."""
        record = self.record_of(run)
        return message_id_of(record.run_id) == run and record.held and record.expires_ms > time.time() * 1000

    def until_waiting(self, result: AsyncResult) -> None:
        """Wait until a run stands in a line."""
        with closing(open_store(self.store.url)) as store:
            assert isinstance(store, Lining)
            until(
                lambda: any(
                    message_id_of(one.run_id) == result.id
                    for key in self.records()
                    for one in store.line_of(key, most=1000).shown
                ),
                what=f"{result.id} in line",
            )

    def evict(self, run: str) -> None:
        """Take a run's lease away from it, as an operator may."""
        key = next(key for key, record in self.records().items() if message_id_of(record.run_id) == run)
        with closing(open_store(self.store.url)) as store:
            assert store.evict(key)

    def endless_keys(self) -> list[str]:
        """Return keys of the store that would stay for ever."""
        with self.store_client as client:
            return [key for key in client.scan_iter("*", count=1000) if client.ttl(key) == -1]

    def sweep(self) -> None:
        """Have the broker deliver again what was not acknowledged in time; older workers look every 100 s."""
        with self.app.connection_for_write() as connection:
            connection.default_channel.qos.restore_visible(num=100, interval=1)

    def broker_is_empty(self) -> bool:
        """Whether no message is waiting or delivered, at one moment."""
        with redis.Redis.from_url(self.broker.url) as client, client.pipeline() as both:
            return both.llen("celery").hlen("unacked").execute() == [0, 0]

    def queued(self) -> int:
        """Return how many messages wait in the broker, delivered ones excluded."""
        with redis.Redis.from_url(self.broker.url) as client:
            return int(client.llen("celery"))


def remembered(record: Record, run: str) -> Remembered | None:
    """Return what a record remembers of a run."""
    return next((one for one in record.runs if message_id_of(one.run_id) == run), None)
