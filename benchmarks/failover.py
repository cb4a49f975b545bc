"""A holder that is killed, and a beat that is killed: how long until the next run, or tick."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.support.report import Report
from benchmarks.support.servers import valkey
from demo.children import Child, Children

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from benchmarks.support.servers import Valkey

TTL = 5
"""Seconds: the ttl of every lease and lock here; python-redis-lock takes whole seconds."""

PERIOD = 1.0
"""Seconds between two ticks."""

KILLS = 3
"""How many beats are killed, one after the other, in a full run."""

HOLDERS = {
    "singleflight": f"with singleflight.lease(url, 'job', ttl={TTL}, wait=120): won(); time.sleep(600)",
    "python-redis-lock, auto_renewal": (
        f"with redis_lock.Lock(client, 'job', expire={TTL}, auto_renewal=True): won(); time.sleep(600)"
    ),
    f"redis-py Lock, timeout={TTL}": f"client.lock('job2', timeout={TTL}).acquire(); won(); time.sleep(600)",
}
HOLDER = """
import sys, time, redis, redis_lock, singleflight
url = sys.argv[1]
client = redis.Redis.from_url(url, socket_timeout=None)
def won(): client.rpush("won", time.time())
"""
BEATS = {
    "singleflight": ("singleflight", {}, 15.0),
    "redbeat, tuned": (
        "benchmarks.beat_app:NotingRedBeat",
        {"redbeat_lock_timeout": 5, "beat_max_loop_interval": 1},
        30.0,
    ),
    "redbeat, as it comes": ("benchmarks.beat_app:NotingRedBeat", {}, 90.0),
}
"""By name: the scheduler, its settings, and seconds after which we stop waiting for a tick."""


def measure(*, quick: bool) -> list[Report]:
    """Kill with SIGKILL, which nobody can tidy up after."""
    return [_holders(), _beats(quick=quick)]


def _holders() -> Report:
    report = Report(
        "failover_holder", f"A killed holder (ttl {TTL} s)", ("variant", "seconds to the next run"),
        plot="seconds to the next run",
    )  # fmt: skip
    for name, body in HOLDERS.items():
        with Children() as children, valkey(children) as server:
            report.add(name, _killed_holder(children, server, HOLDER + body))
    report.notes.append(
        "celery-singleton 0.3.1: never without lock_expiry; celery-once 3.0.1: 3600 s after publishing."
    )
    report.notes.append(
        "singleflight's own tasks: the worker gives back what a killed pool process held, at once."
    )
    return report


def _killed_holder(children: Children, server: Valkey, code: str) -> float:
    client = server.client
    argv = [sys.executable, "-c", code, server.url]
    first = children.add(Child("holder", argv, env=dict(os.environ)))
    _until(lambda: client.llen("won") == 1, 30, first)
    second = children.add(Child("waiter", argv, env=dict(os.environ)))
    time.sleep(2)  # it has begun to wait, and the first lease has been renewed
    killed = time.time()
    os.killpg(first.pid, signal.SIGKILL)
    _until(lambda: client.llen("won") == 2, 60, second)  # noqa: PLR2004
    return float(client.lindex("won", 1)) - killed


def _beats(*, quick: bool) -> Report:
    columns = ("variant", "longest pause s", "beyond the period s", "kills")
    report = Report(
        "failover_beat", f"A killed beat of two (a tick each {PERIOD:g} s)", columns, plot="longest pause s"
    )
    for name, (scheduler, settings, patience) in BEATS.items():
        if quick and name != "singleflight":
            continue
        kills = 1 if quick or name != "singleflight" else KILLS
        pauses = [_killed_beat(scheduler, settings, patience) for _ in range(kills)]
        pause = max(pauses)
        report.add(name, f"> {pause:.0f}" if pause >= patience else pause, pause - PERIOD, f"{kills}")
    beyond = report.rows[0]["beyond the period s"]
    assert isinstance(beyond, float)
    report.bar("singleflight: seconds beyond one period", beyond, 0.5)
    return report


def _killed_beat(scheduler: str, settings: dict[str, float], patience: float) -> float:
    """Return the longest pause between two ticks around the death of the beat that sent the last one."""
    with Children() as children, valkey(children) as server:
        env = {
            **os.environ,
            "BENCH_BROKER": server.url,
            "BENCH_SETTINGS": repr(settings),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        beats = [
            children.add(
                Child(
                    "beat",
                    _beat(children.directory, scheduler, number),
                    env={**env, "BENCH_BEAT": str(number)},
                )
            )
            for number in range(2)
        ]
        client = server.client
        _until(lambda: client.llen("ticks") >= 5, 60, *beats)  # noqa: PLR2004
        leader = int(client.lindex("ticks", -1).split()[1])
        killed = time.time()
        os.killpg(beats[leader].pid, signal.SIGKILL)
        deadline = killed + patience
        while time.time() < deadline and _ticks(client)[-1] < killed + 2 * PERIOD:
            time.sleep(0.05)
        ticks = [*(tick for tick in _ticks(client) if tick > killed - 2 * PERIOD)]
        if ticks[-1] < killed + PERIOD:
            ticks.append(time.time())
        return max(later - earlier for earlier, later in pairwise(ticks))


def _beat(folder: str, scheduler: str, number: int) -> list[str]:
    argv = [sys.executable, "-m", "celery", "-A", "benchmarks.beat_app", "beat", "-l", "WARNING"]
    return [*argv, "-S", scheduler, "--pidfile", f"{folder}/beat-{number}.pid"]


def _ticks(client: redis.Redis) -> list[float]:
    return [float(one.split()[0]) for one in client.lrange("ticks", 0, -1)]  # type: ignore[union-attr]


def _until(condition: Callable[[], bool], seconds: float, *children: Child) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        dead = [child.tail() for child in children if not child.alive]
        if dead or time.monotonic() > deadline:
            raise RuntimeError(
                f"waited {seconds:g} s in vain: {dead or [child.tail() for child in children]}"
            )
        time.sleep(0.01)
