"""The servers of a benchmark: children on loopback ports of their own that end with it."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import redis

from demo.children import Child, Children
from demo.servers import answers, command, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

START = 10.0
"""Seconds in which a server must answer."""


@dataclass(frozen=True, slots=True)
class Valkey:
    """A running server."""

    port: int
    process: psutil.Process

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def client(self) -> Any:
        """A new plain client."""
        return redis.Redis.from_url(self.url)

    @property
    def cpu(self) -> float:
        """Seconds of processor time that it has used."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def traffic(self) -> tuple[int, int]:
        """Return how many commands it has run, and how many requests brought them."""
        with self.client as client:
            stats = client.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): int(one["calls"]) for name, one in stats.items()}
        own = ("info", "client|setinfo", "client|setname", "config|resetstat", "hello", "ping", "select")
        calls = {name: count for name, count in calls.items() if name not in own}
        scripts = calls.get("evalsha", 0) + calls.get("eval", 0)
        # What scripts call is counted too; who uses scripts here uses nothing else.
        return sum(calls.values()), scripts or sum(calls.values())

    def reset_traffic(self) -> None:
        """Begin to count anew."""
        self.client.config_resetstat()


@contextmanager
def valkey(children: Children | None = None) -> Iterator[Valkey]:
    """Start a server for a block."""
    if children is None:
        with Children() as own, valkey(own) as server:
            yield server
        return
    port = free_port()
    _, argv = command(port)
    child = children.add(Child("valkey", argv, env=dict(os.environ)))
    deadline = time.monotonic() + START
    while not answers(port):
        if not child.alive or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start: {child.tail()}")
        time.sleep(0.01)
    yield Valkey(port, psutil.Process(child.pid))
