"""One of any number of identical processes: it handles messages, and generates them if it is its turn."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from examples.dramatiq_app.account import Account
from singleflight import LeaseLost, lease
from singleflight.dramatiq import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight import Lease

FAULTY = 0.05
"""The part of messages that are declared faulty."""

MARK_EVERY = 0.1
"""Without an interval, seconds between two notes of how far the generator has come."""

BACKLOG = 4_000
"""Without an interval, how many messages may wait before the generator does."""

logger = logging.getLogger("example")


@dataclass(frozen=True, slots=True)
class Options:
    """What a process is told; the same for all."""

    url: str
    run: str
    """Names the run, so that several can share a server."""
    count: int | None
    interval: float
    ttl: float
    """Seconds after which another process takes over from a generator that died."""
    threads: int
    guarded: bool = True
    """False: without singleflight, for comparison; then one process is told that it generates."""
    generates: bool = True


class Process:
    """Handler and possible generator."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.account = Account(options.url, options.run)
        self.stopping = threading.Event()
        self.leading = False
        self.broker = RedisBroker(
            url=options.url,
            namespace=f"example-{options.run}",
            # What a killed process had fetched is delivered again after this long, even if little happens.
            heartbeat_timeout=10_000,
            maintenance_chance=100_000,
        )
        if options.guarded:
            install(self.broker)
        self.handle = dramatiq.actor(broker=self.broker, actor_name="handle")(self._handle)

    def run(self) -> None:
        """Handle messages until SIGTERM or SIGINT, and generate them when it is this process's turn."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopping.set())
        worker = dramatiq.Worker(self.broker, worker_threads=self.options.threads, worker_timeout=200)
        worker.start()
        generator = threading.Thread(target=self._generate, name="generator", daemon=True)
        generator.start()
        parent = os.getppid()
        while not self.stopping.wait(1):
            if self.options.count and os.getppid() != parent:
                break  # who started it for a counted run has died
        self.stopping.set()
        if self.leading:
            generator.join(self.options.ttl)  # it gives its lease back, so that the next one need not wait
        worker.stop()

    def _handle(self, number: int) -> None:
        error = ""
        if random.random() < FAULTY:  # noqa: S311 - an example's dice
            error = f"number {number} was faulty in process {os.getpid()}"
        new = self.account.handle(number, error)
        if self.options.interval:
            logger.info("%s %d%s", "handled" if new else "knew", number, ", faulty" if error else "")

    def _generate(self) -> None:
        """Generate whenever this process holds the lease, until there is nothing left to generate."""
        if not self.options.generates:
            return
        while not self.stopping.is_set():
            try:
                with self._turn() as turn:
                    self.leading = True
                    logger.info("generates")
                    self._send_all(turn)
                    return
            except LeaseLost:
                logger.info("generates no longer: its lease has ended, and another one may have taken over")
            except redis.RedisError as error:
                logger.warning("could not send: %s", error)
                self.stopping.wait(1)
            finally:
                self.leading = False

    @contextmanager
    def _turn(self) -> Iterator[Lease | None]:
        """Wait until no other process generates; without singleflight there is nothing to wait for."""
        if not self.options.guarded:
            yield None
            return
        name = f"generator of {self.options.run}"
        with lease(self.options.url, name, ttl=self.options.ttl, wait=None) as turn:
            yield turn

    def _send_all(self, turn: Lease | None) -> None:
        number, interval = self.account.sent(), self.options.interval
        fence = turn.fence if turn is not None else 0
        self.account.mark(number, fence)  # from here on no earlier generator can note anything
        due = marked = time.monotonic()
        while not self.stopping.is_set() and number != self.options.count:
            if turn is not None:
                turn.check()  # local: no round trip; a process that was paused for too long stops here
            number += 1
            self.handle.send(number)
            now = time.monotonic()
            if interval or now > marked + MARK_EVERY or number == self.options.count:
                self.account.mark(number, fence)
                marked = now
            if interval:
                due = max(due + interval, now)
                self.stopping.wait(due - now)
            elif marked == now:
                self._wait_for_handlers()

    def _wait_for_handlers(self) -> None:
        while self.broker.do_qsize(self.handle.queue_name) > BACKLOG and not self.stopping.is_set():
            self.stopping.wait(0.02)
