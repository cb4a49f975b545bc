"""Celery tasks with distinct keys: what each way of guarding them adds to publishing and executing."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.support.report import Report
from benchmarks.support.rounds import quantile, shuffled
from benchmarks.support.servers import valkey
from demo.children import Child, Children

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.support.servers import Valkey

BARE = "bare Celery"
VARIANTS = (
    BARE,
    "bare once more",
    "celery-singleton",
    "celery-once",
    "singleflight running",
    "singleflight waiting_or_running",
)
PARKED = "parked-"
"""Messages are published to a queue of this prefix; renaming it hands them all to the worker at once."""

LONGEST = 120.0
"""Seconds that a worker may take for one round."""


@dataclass(slots=True)
class Cost:
    """What one task cost, in microseconds; one number for each round."""

    publish: list[float] = field(default_factory=list)
    publish_cpu: list[float] = field(default_factory=list)
    execute: list[float] = field(default_factory=list)
    execute_cpu: list[float] = field(default_factory=list)
    commands: float = 0.0
    requests: float = 0.0


def measure(*, quick: bool) -> list[Report]:
    """Compare pools, with and without a result backend."""
    cases = (
        [("solo", False)]
        if quick
        else [("solo", False), ("solo", True), ("prefork", False), ("prefork", True)]
    )
    rounds, tasks = (2, 100) if quick else (12, 200)
    return [_case(pool, rounds, tasks, results=results) for pool, results in cases]


def _case(pool: str, rounds: int, tasks: int, *, results: bool) -> Report:
    columns = (
        "variant", "publish us", "execute us", "both by bare", "over bare us", "publish CPU us",
        "execute CPU us", "CPU over bare us", "commands", "requests", "spread",
    )  # fmt: skip
    title = f"Celery tasks, -P {pool}, {'with' if results else 'without'} results"
    report = Report(f"celery_{pool}{'_results' if results else ''}", title, columns, plot="over bare us")
    costs: dict[str, Cost] = defaultdict(Cost)
    with Children() as children, valkey(children) as broker, valkey(children) as store:
        workers = {}
        for name in VARIANTS:
            env = _environment(name, broker, store, results=results)
            workers[name] = (_worker(children, pool, env), _Publisher(children, env))
        number = 0
        for turn in range(rounds + 1):
            for name in shuffled(VARIANTS):
                number += tasks
                cost = Cost() if turn == 0 else costs[name]  # the first round warms up
                _round(cost, name, *workers[name], broker, store, range(number, number + tasks))
    bare = costs[BARE]
    for name in VARIANTS:
        cost = costs[name]
        both = [a + b for a, b in zip(cost.publish, cost.execute, strict=True)]
        ratios = [a / (b + c) for a, b, c in zip(both, bare.publish, bare.execute, strict=True)]
        report.add(
            name,
            statistics.median(cost.publish),
            statistics.median(cost.execute),
            statistics.median(ratios),
            _over(cost, bare, "publish") + _over(cost, bare, "execute"),
            statistics.median(cost.publish_cpu),
            statistics.median(cost.execute_cpu),
            _over(cost, bare, "publish_cpu") + _over(cost, bare, "execute_cpu"),
            cost.commands,
            cost.requests,
            quantile(ratios, 0.75) - quantile(ratios, 0.25),
        )
    over = {row["variant"]: row for row in report.rows}
    for column in ("over bare us", "CPU over bare us"):
        report.bar(
            f"`running`, {column}, against celery-singleton's",
            over["singleflight running"][column],  # type: ignore[arg-type]
            over["celery-singleton"][column],  # type: ignore[arg-type]
        )
    return report


def _over(cost: Cost, bare: Cost, part: str) -> float:
    """Return the median of the rounds' differences."""
    return statistics.median(a - b for a, b in zip(getattr(cost, part), getattr(bare, part), strict=True))


def _environment(name: str, broker: Valkey, store: Valkey, *, results: bool) -> dict[str, str]:
    own = {
        "BENCH_VARIANT": name,
        "BENCH_BROKER": broker.url,
        "BENCH_STORE": store.url,
        "BENCH_QUEUE": name.replace(" ", "-"),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    if results:
        own["BENCH_BACKEND"] = broker.url
    return {**os.environ, **own}


def _worker(children: Children, pool: str, env: Mapping[str, str]) -> psutil.Process:
    argv = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_app", "worker", "-P", pool, "-c", "1"]
    argv += [
        "-l",
        "WARNING",
        "-n",
        env["BENCH_QUEUE"],
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    ]
    return psutil.Process(children.add(Child("worker", argv, env=env)).pid)


class _Publisher:
    """A process that publishes when told to: one app's imports must not change another's."""

    def __init__(self, children: Children, env: Mapping[str, str]) -> None:
        argv = [sys.executable, "-m", "benchmarks.celery_publisher"]
        self._child = children.add(Child("publisher", argv, env=env))
        self._lines = 0

    def publish(self, numbers: range) -> tuple[float, float]:
        """Publish one task for each number; return wall and processor microseconds of each."""
        self._lines += 1
        self._child.say(json.dumps([numbers.start, numbers.stop]))
        deadline = time.monotonic() + LONGEST
        while len(lines := self._child.output().splitlines()) < self._lines or not lines[-1].endswith("]"):
            if not self._child.alive or time.monotonic() > deadline:
                raise RuntimeError(f"the publisher failed: {self._child.tail()}")
            time.sleep(0.01)
        wall, cpu = json.loads(lines[-1])
        return wall, cpu


def _round(
    cost: Cost,
    name: str,
    worker: psutil.Process,
    publisher: _Publisher,
    broker: Valkey,
    store: Valkey,
    numbers: range,
) -> None:
    queue = name.replace(" ", "-")
    marks = client = broker.client
    marks.delete("mark:first", "mark:last")
    store.reset_traffic()
    wall, cpu = publisher.publish(numbers)
    cost.publish.append(wall)
    cost.publish_cpu.append(cpu)
    with _cpu_of(worker) as used:
        client.rename(PARKED + queue, queue)
        deadline = time.monotonic() + LONGEST
        while (last := marks.get("mark:last")) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the worker of {name} did not get through")
            time.sleep(0.02)
    took = float(last) - float(marks.get("mark:first"))
    cost.execute.append(took / len(numbers) * 1e6)
    cost.execute_cpu.append(used[0] / len(numbers) * 1e6)
    commands, requests = store.traffic()
    cost.commands, cost.requests = commands / len(numbers), requests / len(numbers)


@contextmanager
def _cpu_of(worker: psutil.Process) -> Iterator[list[float]]:
    """Measure the processor time of a worker and its pool."""
    processes = [worker, *worker.children(recursive=True)]

    def total() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before, used = total(), [0.0]
    yield used
    used[0] = total() - before
