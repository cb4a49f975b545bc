"""Many leases: what holding, renewing and remembering them costs, and how far one server goes."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.support.report import Report
from benchmarks.support.servers import valkey
from singleflight.keys import lease_key
from singleflight.lease import Busy, Lease
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.stores.base import REMEMBER
from singleflight.stores.redis import RedisStore

if TYPE_CHECKING:
    from benchmarks.support.servers import Valkey

TTL = 30.0
WINDOW = TTL / 3
"""Seconds measured: every lease is renewed once in them."""

NAME = "shop.tasks.recalculate_account"
KEYS = 500
"""How many keys the memory of one is averaged over."""

WORKERS, SLOTS, RATE = 1000, 8, 10_000
"""The simulated fleet: workers, processes of each, tasks a second of all together."""


def measure(*, quick: bool) -> list[Report]:
    """Hold, remember, and work out from both where one server ends."""
    held = Report(
        "scale_held",
        f"One process holding many leases (ttl {TTL:g} s)",
        ("leases", "% of a core", "server % of a core", "renewals a second", "keeper's threads"),
        plot="% of a core",
    )
    for count in (10, 1000) if quick else (10, 100, 1000, 10_000):
        with valkey() as server:
            _hold(held, server, count)
    if not quick:
        share = held.rows[-1]["% of a core"]
        assert isinstance(share, float)
        held.bar("% of a core for 10,000 leases", share, 5)
    with valkey() as server:
        memory, per_key = _memory(server)
    with valkey() as server:
        fleet = _fleet(server, per_key, calls=300 if quick else 5000)
    return [held, memory, fleet]


def _request(number: int, run: int = 0) -> Request:
    key = lease_key("singleflight", f"{NAME}-{number}").replace(f"-{number}:", ":")
    return Request(
        key=key, task=NAME, run_id=f"{number:08x}-{run:04x}-4000-8000-000000000000", token=new_token()
    )


def _claim(leases: Leases, request: Request) -> Lease:
    answer = leases.claim(request)
    assert not isinstance(answer, Busy)
    return answer


def _hold(report: Report, server: Valkey, count: int) -> None:
    leases = Leases(RedisStore(server.url))
    mine = [_claim(leases, _request(number)) for number in range(count)]
    time.sleep(0.5)
    server.reset_traffic()
    cpu, theirs, began = time.process_time(), server.cpu, time.monotonic()
    time.sleep(WINDOW)
    took = time.monotonic() - began
    cpu, theirs = time.process_time() - cpu, server.cpu - theirs
    renewed = server.traffic()[1]
    threads = sum(thread.name.startswith("singleflight-") for thread in threading.enumerate())
    assert all(lease.held for lease in mine)
    report.add(f"{count:,}", 100 * cpu / took, 100 * theirs / took, renewed / took, f"{threads}")
    for lease in mine:
        lease.release()


def _memory(server: Valkey) -> tuple[Report, float]:
    client, leases = server.client, Leases(RedisStore(server.url))

    def mean() -> float:
        return statistics.mean(client.memory_usage(_request(number).key, samples=0) for number in range(KEYS))

    report = Report("scale_memory", "Memory of one key on the server", ("state", "bytes"), plot="bytes")
    held = [_claim(leases, _request(number)) for number in range(KEYS)]
    report.add("held", mean())
    for lease in held:
        lease.release()
    ended = mean()
    report.add("ended, one run", ended)
    for run in range(1, 70):
        for number in range(KEYS if run < 3 else 1):  # noqa: PLR2004
            _claim(leases, _request(number, run)).release()
        if run == 2:  # noqa: PLR2004
            report.add("ended, three runs", mean())
    report.add(
        "ended, as many runs as are remembered", float(client.memory_usage(_request(0).key, samples=0))
    )
    report.bar("bytes of an ended key", ended, 512)
    report.notes.append("Without the server's own table of keys, about 60 bytes each.")
    return report, ended


def _fleet(server: Valkey, per_key: float, *, calls: int) -> Report:
    """Work out what a fleet needs, from what this server needs for one task."""
    leases = Leases(RedisStore(server.url))
    cpu = server.cpu
    for number in range(calls):
        _claim(leases, _request(number)).release()
    per_task = (server.cpu - cpu) / calls
    renewals = WORKERS * SLOTS / WINDOW
    busy = RATE * per_task + renewals * per_task / 2
    remembered = RATE * REMEMBER
    title = f"A fleet of {WORKERS:,} workers x {SLOTS} processes, {RATE:,} tasks a second, worked out"
    report = Report("scale_fleet", title, ("what", "value"), plot="value")
    report.add("server us for claim + release", per_task * 1e6)
    report.add("tasks a second until one server core is full", 1 / per_task)
    report.add("server cores for the fleet, renewals included", busy)
    report.add("GB for distinct keys, remembered 2 h", remembered * (per_key + 60) / 1e9)
    report.add("GB for distinct keys, remembered 5 min", RATE * 300 * (per_key + 60) / 1e9)
    report.notes.append(
        "A Redis server runs scripts on one core: above 1 core the leases need a Cluster or DynamoDB."
    )
    return report
