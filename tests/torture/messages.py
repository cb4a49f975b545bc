"""Brokers, workers and publishers of one framework, as a part of a run."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import redis

from tests.support.child import Child
from tests.support.commands import import_path
from tests.support.dramatiq_nodes import DramatiqWorker
from tests.support.nodes import WorkerContainer
from tests.support.rabbit import RabbitServer
from tests.support.servers import ValkeyServer
from tests.torture import messages_app as app
from tests.torture.journal import FOLDER, gathered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

    from tests.torture.stores import Target

WORKERS, PUBLISHERS, KEYS = 2, 1, 2


class Messages:
    """One framework on one broker; a context manager.

    Args:
        framework: `celery` or `dramatiq`.
        broker: `redis` or `rabbitmq`.
        target: the store.
        folder: where journals and logs go.
        seed: what publishers go by.
        environment: more variables for all processes.
    """

    def __init__(
        self, framework: str, broker: str, target: Target, folder: Path, seed: int,
        environment: dict[str, str],
    ) -> None:  # fmt: skip
        self.framework, self.broker, self.target = framework, broker, target
        self.folder, self.seed, self._more = folder, seed, environment
        self._stack = ExitStack()
        self.workers: list[Child] = []
        self.publishers: list[Child] = []

    def __enter__(self) -> Self:
        try:
            results = self._stack.enter_context(ValkeyServer("--appendonly", "no")).url
            rabbit = self._stack.enter_context(RabbitServer()) if self.broker == "rabbitmq" else None
            self.url = rabbit.url if rabbit else results
            self._results = results
            self.workers = [self._worker(number) for number in range(WORKERS)]
            for worker in self.workers:
                worker.wait_ready()
            self.publishers = [self._publisher(number) for number in range(PUBLISHERS)]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in (*self.workers, *self.publishers):
            child.kill()
        self._stack.close()

    def drain(self, seconds: float) -> None:
        """Wait until publishers have ended and what was sent has come to its end, or the time is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(child.alive for child in self.publishers):
            time.sleep(0.1)
        while time.monotonic() < end and self._left() and not self._lost_by_broker():
            time.sleep(0.3)

    def _left(self) -> list[str]:
        """Return the messages of which nobody has told the end."""
        history = gathered(self.folder)
        ran = {body.message for body in history.bodies if body.how == "returned"}
        own = [one for one in history.sent if one.key.startswith(self.framework)]
        return [one.run for one in own if one.run not in ran and not one.fate]

    def _lost_by_broker(self) -> bool:
        """Whether a broker that may lose a message of a killed worker has none left."""
        return self.broker == "redis" and self._idle()

    def _idle(self) -> bool:
        with redis.Redis.from_url(self.url) as client:
            if self.framework == "dramatiq":
                return not any(client.hlen(f"dramatiq:{queue}.msgs") for queue in ("default", "default.DQ"))
            return not client.llen("celery") and not client.hlen("unacked")

    def _worker(self, number: int) -> Child:
        name = f"{self.framework}{number}"
        environment = self._environment(number, name)
        if self.framework == "dramatiq":
            module = "tests.torture.dramatiq_app"
            return DramatiqWorker(self.folder, environment, name=name, threads=4, module=module)
        module = "tests.torture.celery_app"
        return WorkerContainer(self.folder, environment, name=name, app=module).child

    def _publisher(self, number: int) -> Child:
        name = f"{self.framework}-publisher{number}"
        words: Sequence[Any] = [self.framework, self.seed, KEYS]
        return Child(
            [sys.executable, "-m", "tests.torture.publisher", *words],
            log=self.folder / f"{name}.log",
            ready="",
            env={**self._environment(number, name), **import_path(self.folder)},
        )

    def _environment(self, number: int, name: str) -> dict[str, str]:
        urls = self.target.urls
        return {
            app.BROKER: self.url,
            app.RESULTS: self._results,
            app.STORE: urls[number % len(urls)],
            app.NAME: name,
            FOLDER: str(self.folder),
            **self.target.environment,
            **self._more,
        }
