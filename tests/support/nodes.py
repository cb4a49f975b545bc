"""pytest-celery's nodes on processes of this machine instead of Docker containers.

`ProcessContainer` answers the part of a container's interface that pytest-celery's nodes use, so that
`celery_setup` and all that is documented for it works unchanged: `celery_setup.worker.kill()`,
`.restart()`, `.assert_log_exists()`, `celery_setup.ready(ping=..., control=..., docker=True)`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from contextlib import suppress
from signal import SIGKILL, Signals
from typing import TYPE_CHECKING, Any

import redis
from pytest_celery import CeleryTestContainer, CeleryTestWorker, CeleryWorkerContainer

from tests.support import starting
from tests.support.child import Child
from tests.support.commands import APP, celery_command, import_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.support.servers import ValkeyServer


class ProcessContainer(CeleryTestContainer):
    """What pytest-celery asks of a container, answered by a `Child`; talks to no Docker."""

    def __init__(self, child: Child, name: str) -> None:
        # Not calling the base class: it wants a Docker container and only keeps it.
        self.child = child
        self._name = name
        self._id = uuid.uuid4().hex

    @property
    def id(self) -> str:
        """A random id, as Docker gives one."""
        return self._id

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._name

    @property
    def status(self) -> str:
        """Docker's word for whether the process runs."""
        return "running" if self.child.alive else "exited"

    def reload(self) -> None:
        """Nothing to do: every answer here is fresh."""

    def logs(self) -> str:
        """Return all that the process has printed, restarts included."""
        return self.child.log()

    def ready(self) -> bool:
        """Wait until the process says that it is up."""
        self.child.wait_ready()
        return True

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """Send a signal; SIGKILL goes to the whole group and is waited for, as for a container."""
        number = signal_number(signal)
        if number == SIGKILL:
            self.child.kill()
        else:
            self.child.send(number)

    def restart(self, timeout: float = 30) -> None:
        """End the process if it runs (SIGTERM, after `timeout` seconds SIGKILL), and start it again."""
        if self.child.alive:
            with suppress(subprocess.TimeoutExpired):
                self.child.stop(timeout)
        self.child.kill()
        self.child.start()
        self.child.wait_ready()

    def teardown(self) -> None:
        """End the process and its group at once: a warm shutdown would cost seconds in each test."""
        self.child.kill()


class ValkeyContainer(CeleryTestContainer):
    """One Valkey server, which is broker, result backend and lease store; its data dies with it."""

    id = name = "valkey"

    def __init__(self, server: ValkeyServer) -> None:
        # As in `ProcessContainer`, there is no Docker container to give to the base class.
        self.server = server

    @property
    def client(self) -> redis.Redis:
        """A new client of the server."""
        return redis.Redis.from_url(self.server.url, decode_responses=True, socket_timeout=10)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """What pytest-celery builds the app's broker and backend from."""
        url, port = self.server.url, self.server.port
        return {"url": url, "host_url": url, "hostname": "127.0.0.1", "port": port, "vhost": "0"}

    @property
    def status(self) -> str:
        """Docker's word for whether the server runs."""
        return "running" if self.server._process is not None else "exited"

    def reload(self) -> None:
        """Nothing to do: every answer here is fresh."""

    def logs(self) -> str:
        """Return all that the server has printed, restarts included."""
        return (self.server.folder / "server.log").read_text(errors="replace")

    def ready(self) -> bool:
        """Return at once: a `ValkeyServer` that has started answers."""
        return True

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """Send a signal to the server; SIGKILL is waited for."""
        number = signal_number(signal)
        if number == SIGKILL:
            self.server.kill()
        else:
            os.kill(self.server.pid, number)

    def restart(self, timeout: float = 30) -> None:  # noqa: ARG002 - pytest-celery's signature
        """Start the server again, empty, on the same port."""
        self.server.restart()

    def teardown(self) -> None:
        """Nothing to do: the fixture that started the server ends it, after a last look at its keys."""


class WorkerContainer(ProcessContainer, CeleryWorkerContainer):
    """One real `celery worker`, started as an operator would."""

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        *,
        name: str = "worker1",
        app: str = APP,
        pool: str = "prefork",
        concurrency: int = 2,
        args: Sequence[str] = (),
        start_method: str = "",
    ) -> None:
        # Gossip and mingle only cost seconds at every start; a test that wants them runs its own command.
        options = ["-l", "INFO", "-n", f"{name}@%h", "-P", pool, "-c", concurrency]
        argv = [*celery_command(app), "worker", *options, "--without-gossip", "--without-mingle", *args]
        if start_method := start_method or starting.CHOSEN:
            include(argv, "tests.support.started")
            env = {**env, **starting.environment(start_method)}
        child = Child(argv, log=folder / f"{name}.log", ready=" ready.", env={**import_path(folder), **env})
        super().__init__(child, name)

    def worker_name(self) -> str:  # type: ignore[override] - one class per worker name would be silly
        """Return the part of the node name before the @."""
        return self._name


def include(argv: list[Any], module: str) -> None:
    """Add a module to those that a worker imports; of two options ``-I`` the first would be lost."""
    if "-I" in argv:
        argv[argv.index("-I") + 1] += f",{module}"
    else:
        argv += ["-I", module]


class WorkerNode(CeleryTestWorker):
    """A worker of `celery_setup`, whose processes a test can reach one by one."""

    container: WorkerContainer

    def hostname(self) -> str:
        """Return the node name that remote control and events use."""
        return f"{self.worker_name}@{socket.gethostname()}"

    @property
    def pid(self) -> int:
        """The worker's main process."""
        return self.container.child.pid

    @property
    def alive(self) -> bool:
        """Whether the main process runs."""
        return self.container.child.alive

    def pool(self) -> list[int]:
        """Return the process ids of the prefork pool's children."""
        return self.container.child.children()

    def kill_pool_child(self, pid: int, number: int = SIGKILL) -> None:
        """Send a signal to one child of the pool."""
        assert pid in self.pool(), f"{pid} is no child of {self.name()}: {self.pool()}"
        os.kill(pid, number)


def signal_number(name: str | int) -> int:
    """Return the number of a signal that is given by name or number."""
    return Signals[name] if isinstance(name, str) else Signals(name)
