"""One lease that nobody else wants: what claim and release cost beside two bare scripts."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import redis_lock

from benchmarks.support.report import Report
from benchmarks.support.requests import counted_requests
from benchmarks.support.rounds import interleave, quantile, ratio
from benchmarks.support.servers import valkey
from singleflight import try_lease
from singleflight.lease import Busy
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.stores.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.support.servers import Valkey

LIMIT = 1.25
"""Claim and release may cost this much of two bare scripts."""

SET = "return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"
DELETE = "return redis.call('DEL', KEYS[1])"
BARE = "two bare EVALSHA"
TASK = "singleflight: claim + release"


def measure(*, quick: bool) -> list[Report]:
    """Compare the variants; a control is the bare variant once more."""
    columns = (
        "variant",
        "p50 us",
        "p99 us",
        "by bare",
        "client CPU us",
        "server CPU us",
        "requests",
        "spread",
    )
    report = Report("uncontended", "Claim and release, uncontended", columns, plot="by bare")
    rounds, calls = (5, 50) if quick else (40, 100)
    with valkey() as server:
        variants = variants_on(server)
        times = interleave(variants, rounds=rounds, calls=calls)
        base = times[BARE].medians
        for name in variants:
            own = times[name]
            server_cpu, requests = cost_on(server, variants[name], calls=200 if quick else 2000)
            report.add(
                name,
                quantile(own.wall, 0.5),
                quantile(own.wall, 0.99),
                ratio(own.medians, base),
                statistics.median(own.cpu),
                server_cpu,
                requests,
                own.spread,
            )
    report.bar("claim + release p50 by two bare EVALSHA", ratio(times[TASK].medians, base), LIMIT)
    trips = next(row["requests"] for row in report.rows if row["variant"] == TASK)
    assert isinstance(trips, float)
    report.bar("requests per uncontended run", trips, 2)
    return [report]


def variants_on(server: Valkey) -> dict[str, Callable[[int], object]]:
    """Return what is compared: each takes a number nobody else has, and locks and unlocks under it."""
    client, store = server.client, RedisStore(server.url)
    leases = Leases(store)
    taking, freeing = client.script_load(SET), client.script_load(DELETE)

    def bare(number: int) -> None:
        client.evalsha(taking, 1, f"bare:{number}", "token", 30_000)
        client.evalsha(freeing, 1, f"bare:{number}")

    def redis_py(number: int) -> None:
        with client.lock(f"redis-py:{number}", timeout=30):
            pass

    def python_redis_lock(number: int) -> None:
        with redis_lock.Lock(client, f"python-redis-lock:{number}", expire=30):
            pass

    def claim(number: int) -> None:
        key = f"singleflight:shop:{{{abs(number):032x}}}"
        request = Request(key=key, task="shop", run_id=str(number), token=new_token())
        _given(leases.claim(request)).release()

    def whole(number: int) -> None:
        _given(try_lease(store, f"shop:{number}")).release()

    return {
        BARE: bare,
        "the same once more": bare,
        "redis-py Lock": redis_py,
        "python-redis-lock": python_redis_lock,
        TASK: claim,
        "singleflight: try_lease + release": whole,
    }


def cost_on(server: Valkey, call: Callable[[int], object], *, calls: int) -> tuple[float, float]:
    """Return the server's own microseconds, and the requests it got, for each call."""
    cpu = server.cpu
    with counted_requests() as requests:
        for number in range(calls):
            call(-1 - number)
    return (server.cpu - cpu) / calls * 1e6, requests[0] / calls


def _given(answer: Any) -> Any:
    assert not isinstance(answer, Busy), answer
    return answer
