"""Many entries, many replicas of beat: how late ticks are sent, and what that costs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil

from benchmarks.support.report import Report
from benchmarks.support.rounds import quantile
from benchmarks.support.servers import valkey
from demo.children import Child, Children

ENTRIES, REPLICAS, SECONDS = 10_000, 5, 120
RATE = 2.0
"""Ticks a second. For each of them Celery's scheduler goes through all entries, which takes it a tenth of a
second on a small machine; five replicas do that on the same cores here, where they would have their own."""
LONGEST = 240.0
"""Seconds in which the first tick must come."""

SCHEDULERS = {
    "Celery's scheduler alone": ("benchmarks.beat_app:Noting", 1),
    f"singleflight, {REPLICAS} replicas": ("singleflight", REPLICAS),
    f"redbeat, {REPLICAS} replicas": ("benchmarks.beat_app:NotingRedBeat", REPLICAS),
}


def measure(*, quick: bool) -> list[Report]:
    """Count from the first tick on, for two minutes."""
    entries, seconds = (300, 5) if quick else (ENTRIES, SECONDS)
    columns = (
        "variant",
        "ticks",
        "late p50 ms",
        "late p99 ms",
        "requests a tick",
        "% of a core, all replicas",
    )
    title = f"{entries:,} beat entries, {RATE:g} ticks a second"
    report = Report("beat_scale", title, columns, plot="late p99 ms")
    for name, (scheduler, replicas) in SCHEDULERS.items():
        if not (quick and "redbeat" in name):
            report.add(name, *_case(scheduler, replicas, entries, seconds))
    alone, ours = (row["late p99 ms"] for row in report.rows[:2])
    assert isinstance(alone, float)
    assert isinstance(ours, float)
    report.bar("late p99 by Celery's scheduler alone", ours / alone, 2)
    return [report]


def _case(scheduler: str, replicas: int, entries: int, seconds: float) -> tuple[float | None, ...]:
    with Children() as children, valkey(children) as server:
        env = {
            **os.environ,
            "BENCH_BROKER": server.url,
            "BENCH_ENTRIES": str(entries),
            "BENCH_RATE": str(RATE),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        argv = [sys.executable, "-m", "celery", "-A", "benchmarks.beat_app", "beat", "-l", "WARNING", "-S"]
        beats = [
            children.add(
                Child(
                    "beat",
                    [*argv, scheduler, "--pidfile", f"{children.directory}/{number}.pid"],
                    env={**env, "BENCH_BEAT": str(number)},
                )
            )
            for number in range(replicas)
        ]
        client, deadline = server.client, time.monotonic() + LONGEST
        while not client.llen("ticks"):
            dead = [beat.tail() for beat in beats if not beat.alive]
            if dead or time.monotonic() > deadline:
                raise RuntimeError(f"no tick came: {dead or beats[0].tail()}")
            time.sleep(0.05)
        client.delete("ticks")
        server.reset_traffic()
        processes = [psutil.Process(beat.pid) for beat in beats]
        cpu = sum(sum(process.cpu_times()[:2]) for process in processes)
        time.sleep(seconds)
        cpu = sum(sum(process.cpu_times()[:2]) for process in processes) - cpu
        ticks = [one.split() for one in client.lrange("ticks", 0, -1)]
        late = [1000 * float(tick[2]) for tick in ticks]
        # Ours are scripts, and nothing else here is; redbeat's cannot be told from what publishes the ticks.
        requests = server.traffic()[1] / len(ticks) if scheduler == "singleflight" else None
    return float(len(ticks)), quantile(late, 0.5), quantile(late, 0.99), requests, 100 * cpu / seconds
