"""A crowd of Celery tasks of one key that all must run, one at a time: how long, and at whose cost."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from celery import Celery

from benchmarks.support.report import Report
from benchmarks.support.rounds import shuffled
from benchmarks.support.servers import valkey
from demo.children import Child, Children

if TYPE_CHECKING:
    from benchmarks.support.servers import Valkey

VARIANTS = (
    "singleflight, in line",
    "singleflight, by countdown",
    "lock and retry(countdown=1)",
    "redis-py Lock in the body",
)
BODY = 0.1
"""Seconds that each run takes."""

WORKERS = 2

START = 60.0
"""Seconds in which all workers must answer."""

LONGEST = 600.0
"""Seconds after which we stop waiting for a crowd."""


def measure(*, quick: bool) -> list[Report]:
    """Publish all at once, and meanwhile now and then a task that has no key."""
    count = 20 if quick else 200
    columns = (
        "variant",
        "seconds",
        "by the bodies' own",
        "messages per run",
        "others waited s, median",
        "most",
    )
    report = Report(
        "crowd", f"{count} tasks of one key, {BODY} s each, two workers of four processes", columns,
        plot="seconds",
    )  # fmt: skip
    rows = {name: _crowd(name, count) for name in shuffled(VARIANTS)}
    for name in VARIANTS:
        report.add(name, *rows[name])
    report.notes.append("The other tasks have no key and do nothing: what they wait for is a free process.")
    return [report]


def _crowd(name: str, count: int) -> tuple[float, ...]:
    with Children() as children, valkey(children) as broker, valkey(children) as store:
        env = {
            **os.environ,
            "BENCH_VARIANT": name,
            "BENCH_BODY": str(BODY),
            "BENCH_BROKER": broker.url,
            "BENCH_STORE": store.url,
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        argv = [sys.executable, "-m", "celery", "-A", "benchmarks.crowd_app", "worker", "-c", "4"]
        argv += ["-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        for number in range(WORKERS):
            children.add(Child("worker", [*argv, "-n", f"worker{number}"], env=env))
        app = Celery("publisher", broker=broker.url, set_as_current=False)
        deadline = time.monotonic() + START
        while len(app.control.ping(timeout=0.5)) < WORKERS:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name}: the workers are not up after {START:g} s")
        broker.reset_traffic()
        began, others = time.time(), 0
        for _ in range(count):
            app.send_task("one")
        while store.client.llen("ended") < count:
            _send_other(app)
            others += 1
            time.sleep(0.5)
            if time.time() > began + LONGEST:
                raise RuntimeError(f"{name}: {store.client.llen('ended')} of {count} in {LONGEST:g} s")
        _wait(store, "waited", others)
        ended = [float(value) for value in store.client.lrange("ended", 0, -1)]
        waited = sorted(float(value) for value in store.client.lrange("waited", 0, -1))
        messages = broker.client.info("commandstats")["cmdstat_lpush"]["calls"] - others
        app.close()
    took = max(ended) - began
    return took, took / (count * BODY), messages / count, waited[len(waited) // 2], waited[-1]


def _send_other(app: Celery) -> None:
    app.send_task("other", (time.time(),))


def _wait(store: Valkey, name: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while store.client.llen(name) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} has not come to {count}")
        time.sleep(0.05)
