"""Many who want one lease: the access counter, each waiter a thread that adds one while nobody else does."""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import dramatiq.rate_limits
import redis_lock
from dramatiq.rate_limits.backends import RedisBackend
from pottery import Redlock

from benchmarks.support.report import Report
from benchmarks.support.requests import counted_requests
from benchmarks.support.rounds import quantile, shuffled
from benchmarks.support.servers import valkey
from benchmarks.support.stores import other_stores
from singleflight import lease
from singleflight.stores.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from benchmarks.support.servers import Valkey

    Lock = Callable[[], AbstractContextManager[object]]

HOLD = 0.001
"""Seconds for which each turn holds the lease."""

TURNS = 200
"""Turns of all waiters together."""

FLOOR, PEER, OURS = "floor: mutex + two bare requests", "python-redis-lock", "singleflight on Valkey"
SLOW = (
    "redis-py Lock",
    "singleflight on SQLite",
    "singleflight on PostgreSQL",
    "singleflight on DynamoDB emulator",
)
"""Variants that poll rarely, or whose store is slow: they get fewer turns."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One time that one waiter held the lease; seconds."""

    waiter: int
    asked: float
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Run:
    """All turns of one variant, in the order in which they were held."""

    total: float
    turns: list[Turn]
    requests: int

    @property
    def handoffs(self) -> list[float]:
        """Milliseconds for which the lease lay idle between two turns."""
        return [(later.began - earlier.ended) * 1e3 for earlier, later in pairwise(self.turns)]

    @property
    def longest_wait(self) -> float:
        """Milliseconds."""
        return max(turn.began - turn.asked for turn in self.turns) * 1e3

    @property
    def again(self) -> float:
        """How often the same waiter had it twice in a row, as a part of all hand-offs."""
        return statistics.mean(a.waiter == b.waiter for a, b in pairwise(self.turns))


def measure(*, quick: bool) -> list[Report]:
    """Compare 20 waiters with 100."""
    with valkey() as server, other_stores(quick=quick) as others:
        few = _case(server, others, waiters=20, rounds=1 if quick else 5)
        many = _case(server, others, waiters=100, rounds=1 if quick else 3)
    per_turn = [next(row["requests"] for row in one.rows if row["variant"] == OURS) for one in (few, many)]
    assert isinstance(per_turn[0], float)
    assert isinstance(per_turn[1], float)
    many.bar("requests per hand-off of 100 waiters by those of 20", per_turn[1] / per_turn[0], 1.25)
    return [few, many]


def _case(server: Valkey, others: dict[str, str], *, waiters: int, rounds: int) -> Report:
    locks = locks_on(server, others)
    runs: dict[str, list[Run]] = {name: [] for name in locks}
    for turn in range(rounds):
        for name in shuffled(locks):
            if turn and name in SLOW:
                continue
            turns = max(1, (TURNS // 4 if name in SLOW else TURNS) // waiters)
            runs[name].append(_run(locks[name](turn), waiters, turns))
    columns = (
        "variant", "total s", "hand-off p50 ms", "p99 ms", "longest wait ms", "same again %", "requests",
    )  # fmt: skip
    report = Report(f"contention_{waiters}", f"{waiters} waiters, 1 ms each", columns, plot="hand-off p50 ms")
    for name, own in runs.items():
        handoffs = [gap for run in own for gap in run.handoffs]
        turns = sum(len(run.turns) for run in own) / len(own)
        report.add(
            name,
            statistics.median(run.total for run in own) * TURNS / turns,
            quantile(handoffs, 0.5),
            quantile(handoffs, 0.99),
            statistics.median(run.longest_wait for run in own),
            100 * statistics.mean(run.again for run in own),
            statistics.median(run.requests / len(run.turns) for run in own) or None,
        )
    report.notes.append(
        f"Total: for {TURNS} turns (slow variants: extrapolated). Requests: Redis requests per turn."
    )
    if waiters == 20:  # noqa: PLR2004
        _hold_to_bars(report)
    return report


def _hold_to_bars(report: Report) -> None:
    rows: dict[Any, dict[str, Any]] = {row["variant"]: row for row in report.rows}
    ours, peer = rows[OURS], rows[PEER]
    report.bar("total s, against python-redis-lock's", ours["total s"], peer["total s"])
    report.bar("hand-off p50, ms", ours["hand-off p50 ms"], 1)
    report.bar("hand-off p99, ms", ours["p99 ms"], 5)
    report.bar(
        "longest wait, ms, against python-redis-lock's", ours["longest wait ms"], peer["longest wait ms"]
    )


def locks_on(server: Valkey, others: dict[str, str]) -> dict[str, Callable[[int], Lock]]:
    """Return what is compared: from the number of the round to what makes one waiter's lock."""
    client, store, mutex = server.client, RedisStore(server.url), threading.Lock()
    limits = RedisBackend(url=server.url)

    @contextmanager
    def floor() -> Iterator[None]:
        with mutex:
            client.ping()
            yield
            client.ping()

    @contextmanager
    def limiter(name: str) -> Iterator[None]:
        own = dramatiq.rate_limits.ConcurrentRateLimiter(limits, name, limit=1, ttl=30_000)
        while True:
            with own.acquire(raise_on_failure=False) as acquired:
                if acquired:
                    yield
                    return
            time.sleep(0.01)

    def ours(url: object, turn: int) -> Lock:
        return lambda: lease(url, f"counter-{turn}", wait=120)  # type: ignore[arg-type]

    return {
        FLOOR: lambda _: floor,
        PEER: lambda turn: lambda: redis_lock.Lock(client, f"theirs-{turn}", expire=30),
        "redis-py Lock, 10 ms": lambda turn: lambda: client.lock(f"lock-{turn}", timeout=30, sleep=0.01),
        "redis-py Lock": lambda turn: lambda: client.lock(f"plain-{turn}", timeout=30),
        "pottery Redlock": lambda turn: (
            lambda: Redlock(key=f"pottery-{turn}", masters={client}, auto_release_time=30)
        ),
        "dramatiq limiter, 10 ms": lambda turn: lambda: limiter(f"limit-{turn}"),
        OURS: lambda turn: ours(store, turn),
        **{f"singleflight on {name}": lambda turn, url=url: ours(url, turn) for name, url in others.items()},
    }


def _run(lock: Lock, waiters: int, turns: int) -> Run:
    held: list[Turn] = []
    start = threading.Barrier(waiters + 1)
    failed: list[BaseException] = []

    def wait(number: int) -> None:
        start.wait()
        try:
            for _ in range(turns):
                asked = time.perf_counter()
                with lock():
                    began = time.perf_counter()
                    time.sleep(HOLD)
                    held.append(Turn(number, asked, began, time.perf_counter()))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(waiters)]
    for thread in threads:
        thread.start()
    with counted_requests() as requests:
        began = time.perf_counter()
        start.wait()
        for thread in threads:
            thread.join()
        total = time.perf_counter() - began
    assert not failed, failed
    assert len(held) == waiters * turns
    assert all(later.began >= earlier.ended for earlier, later in pairwise(held)), "two held it at once"
    return Run(total, held, requests[0])
