"""Dramatiq messages with distinct keys: bare, with the limiter in the body, and as singletons."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

from benchmarks.support.report import Report
from benchmarks.support.rounds import quantile, ratio, shuffled
from benchmarks.support.servers import valkey
from singleflight import Singleton
from singleflight.dramatiq import install

if TYPE_CHECKING:
    from benchmarks.support.servers import Valkey

LIMIT = 1.5
BARE, LIMITER, OURS = "bare Dramatiq", "ConcurrentRateLimiter in the body", "singleflight"
LONGEST = 120.0
"""Seconds that one round of one variant may take."""


@dataclass(slots=True)
class Lane:
    """One variant: a broker of its own, one actor, and what a message cost in each round (microseconds)."""

    broker: Any
    actor: Any
    done: threading.Event
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure(*, quick: bool) -> list[Report]:
    """Measure from a worker's start to the end of its last message."""
    rounds, messages = (2, 100) if quick else (9, 400)
    logging.getLogger("dramatiq").setLevel(logging.ERROR)
    with valkey() as server:
        lanes = {name: lane_on(server, name) for name in (BARE, "bare once more", LIMITER, OURS)}
        for turn in range(rounds + 1):
            for name in shuffled(lanes):
                _round(lanes[name], messages, warm=turn == 0)
    columns = ("variant", "us", "by bare", "CPU us", "CPU by bare", "spread")
    report = Report("dramatiq_overhead", "One Dramatiq message", columns, plot="by bare")
    bare = lanes[BARE]
    for name, lane in lanes.items():
        ratios = [a / b for a, b in zip(lane.wall, bare.wall, strict=True)]
        report.add(
            name,
            statistics.median(lane.wall),
            ratio(lane.wall, bare.wall),
            statistics.median(lane.cpu),
            ratio(lane.cpu, bare.cpu),
            quantile(ratios, 0.75) - quantile(ratios, 0.25),
        )
    report.bar("singleflight by bare", ratio(lanes[OURS].wall, bare.wall), LIMIT)
    return [report]


def lane_on(server: Valkey, name: str) -> Lane:
    """Return a variant."""
    broker = RedisBroker(url=server.url, namespace=name.replace(" ", "-"))
    options: dict[str, Any] = {}
    limits, done = RedisBackend(url=server.url), threading.Event()
    if name == OURS:
        install(broker, server.url)
        options["singleton"] = Singleton(by="number")

    def body(number: int, *, last: bool) -> None:
        if name == LIMITER:
            with ConcurrentRateLimiter(limits, f"limit-{number}", limit=1, ttl=30_000).acquire():
                pass
        if last:
            done.set()

    actor = dramatiq.actor(body, broker=broker, actor_name="recalculate", queue_name="bench", **options)
    return Lane(broker, actor, done)


def _round(lane: Lane, messages: int, *, warm: bool) -> None:
    base = time.monotonic_ns()
    for number in range(messages):
        lane.actor.send(base + number, last=number == messages - 1)
    lane.done.clear()
    worker = dramatiq.Worker(lane.broker, worker_threads=1, worker_timeout=50)
    # All at once: fetching a few at a time, a worker with one thread sleeps more than it works.
    worker.queue_prefetch = messages
    wall, cpu = time.perf_counter(), time.process_time()
    worker.start()
    if not lane.done.wait(LONGEST):
        raise RuntimeError("the worker did not get through")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    worker.stop()
    if not warm:
        lane.wall.append(wall / messages * 1e6)
        lane.cpu.append(cpu / messages * 1e6)
