"""Real Dramatiq workers: each a process with threads of its own, started by Dramatiq's command line."""

from __future__ import annotations

import re
import sys
from collections import Counter
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import redis
from dramatiq.results import ResultMissing

from singleflight.api import PREFIX
from singleflight.stores import open_store
from singleflight.stores.optional import Listing
from tests.integration.dramatiq_actors import BROKER, STORE, Actors, make_broker
from tests.support.bodylog import VARIABLE, BodyLog
from tests.support.child import Child
from tests.support.commands import import_path
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

MODULE = "tests.integration.dramatiq_actors"
GEVENT = """
from gevent import monkey; monkey.patch_all()
import sys; from dramatiq.cli import main; sys.exit(main())
"""
"""What the command `dramatiq-gevent` does."""


class DramatiqWorker(Child):
    """One `dramatiq` command with one worker process.

    Args:
        folder: where its log goes.
        env: the environment of its app.
        name: tells workers apart.
        threads: worker threads.
        module: what to import.
        gevent: run greenlets instead of threads.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        *,
        name: str = "worker1",
        threads: int = 8,
        module: str = MODULE,
        gevent: bool = False,
    ) -> None:
        program = ["-c", GEVENT] if gevent else ["-m", "dramatiq"]
        super().__init__(
            [sys.executable, *program, module, "--processes", "1", "--threads", threads],
            log=folder / f"{name}.log",
            ready="Worker process is ready for action",
            env={**import_path(folder), **env},
        )


class Cluster:
    """A Valkey server, perhaps a second one for the leases, and workers; a context manager.

    Args:
        folder: where logs and the body log go.
        own_store: keep the leases in a server of their own.
        env: more variables for the workers.
    """

    def __init__(
        self, folder: Path, *, own_store: bool = False, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._more = dict(env or {})
        self._own_store = own_store
        self.log = BodyLog(folder / "bodies.log")
        self.workers: list[DramatiqWorker] = []

    def __enter__(self) -> Self:
        """Start the servers and connect a publisher."""
        try:
            self.server = self._stack.enter_context(ValkeyServer())
            self.store = self._stack.enter_context(ValkeyServer()) if self._own_store else self.server
            self.client = self._stack.enter_context(redis.Redis.from_url(self.server.url))
            self.actors = Actors(make_broker(self.server.url, self.store.url))
            self._stack.callback(self.actors.broker.client.close)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything."""
        for worker in self.workers:
            worker.kill()
        self._stack.close()

    def start(self, count: int = 1, *, threads: int = 8, **options: Any) -> list[DramatiqWorker]:
        """Start workers and wait until they are up."""
        env = {BROKER: self.server.url, STORE: self.store.url, VARIABLE: str(self.log.path), **self._more}
        started = [
            DramatiqWorker(
                self._folder, env, name=f"worker{len(self.workers) + i + 1}", threads=threads, **options
            )
            for i in range(count)
        ]
        self.workers += started
        for worker in started:
            worker.wait_ready()
        return started

    def result(self, message: Any, timeout: float = 60.0) -> Any:
        """Wait for the result of a message and return it, or raise its failure."""
        backend = self.actors.broker.get_results_backend()

        def look() -> list[Any]:
            # Not block=True: redis-py 8 gives up reading after 5 seconds.
            try:
                return [message.get_result(backend=backend)]
            except ResultMissing:
                return []

        return until(look, timeout, f"the result of {message}")[0]

    def told(self, messages: Sequence[Any]) -> dict[str, int]:
        """Return how many of these messages the workers' logs have told each ending of, retries aside."""
        ids = {message.message_id for message in messages}
        pairs = {
            (run, what)
            for run, what in re.findall(r": run (\S+) ([a-z ]+), key ", self.logs())
            if run in ids and what not in ("granted", "released")
        }
        return dict(Counter(what for _, what in pairs))

    def waits(self, message: Any) -> list[float]:
        """Return for how many seconds each deferral has put a message off, as the workers' logs tell."""
        told = rf": run {message.message_id} deferred, key .*, again in (\S+) s"
        return [float(seconds) for seconds in re.findall(told, self.logs())]

    def lease_left(self) -> float:
        """Return for how many seconds the longest lease lives on, by the store's own clock; 0: none lives."""
        with closing(open_store(self.store.url)) as store:
            assert isinstance(store, Listing)
            looks = [store.peek(key) for key in store.scan(PREFIX)]
        left = [look.record.expires_ms - look.now_ms for look in looks if look and look.record.held]
        return max([0, *left]) / 1000

    def logs(self) -> str:
        """Return all that the workers have printed."""
        return "\n".join(worker.log() for worker in self.workers)

    def dead(self) -> int:
        """Return how many messages are in the dead-letter queue."""
        return int(self.client.zcard("dramatiq:default.XQ"))

    def idle(self) -> bool:
        """Whether no message is queued, delayed or being worked on."""
        return not any(self.client.hlen(f"dramatiq:{queue}.msgs") for queue in ("default", "default.DQ"))

    def endless(self) -> list[bytes]:
        """Return our keys that would stay for ever."""
        keys = self.client.scan_iter("*singleflight*", count=1000)
        return [key for key in keys if self.client.ttl(key) == -1]
