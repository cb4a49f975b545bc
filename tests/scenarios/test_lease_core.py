"""Scenarios 18 to 36: what a lease must survive, on a real Valkey and with real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import redis

from singleflight import Busy, Event, Kind, Lease, Outcome, Reason, Singleton, try_lease
from singleflight.events import Notify
from singleflight.keys import lease_key
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.stores.base import Claim, Release
from singleflight.stores.memory import MemoryStore
from singleflight.stores.redis import RedisStore
from singleflight.testing import FakeClock
from tests.integration.worker_app import PARENT
from tests.support.bodylog import overlaps
from tests.support.proxy import FaultProxy
from tests.support.rig import Rig
from tests.support.servers import ValkeyServer
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """Run one Valkey for all scenarios that need no Celery; nothing in it may live for ever."""
    with ValkeyServer() as server:
        yield server
        with redis.Redis.from_url(server.url) as client:
            assert not [key for key in client.scan_iter("*") if client.ttl(key) == -1]


@pytest.fixture
def near(server: ValkeyServer) -> Iterator[RedisStore]:
    """Return a store that nothing stands between."""
    store = RedisStore(server.url)
    yield store
    store.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers of four processes, whose parents hold a lease before they fork."""
    with Rig(tmp_path_factory.mktemp("core")) as rig:
        for name in ("parent-1", "parent-2"):
            rig.worker(concurrency=4, ready=False, env={PARENT: name})
        for worker in rig.workers:
            worker.ready()
        yield rig
        assert not rig.endless_keys()


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Keep one event."""
        self.events.append(event)

    def kinds(self) -> list[Kind]:
        """Return what has happened so far."""
        return [event.kind for event in self.events]


@contextmanager
def behind_proxy(server: ValkeyServer) -> Iterator[tuple[FaultProxy, Leases, Heard]]:
    """Give leases whose way to the server can be cut."""
    heard = Heard()
    with FaultProxy(server.port) as proxy:
        store = RedisStore(proxy.url)
        try:
            yield proxy, Leases(store, Notify([heard])), heard
        finally:
            store.close()


def claimed(leases: Leases, name: str, ttl: float, **options: float) -> Lease:
    """Claim a free lease."""
    request = Request(
        key=lease_key("singleflight", name), task=name, run_id=name, token=new_token(), ttl=ttl, **options
    )
    lease = leases.claim(request)
    assert isinstance(lease, Lease)
    return lease


def test_scenario_18_a_late_renewal_changes_nothing(server: ValkeyServer, near: RedisStore) -> None:
    """Cut off for two ttl, A finds at its next renewal that B has the lease, and leaves B's record alone."""
    with behind_proxy(server) as (proxy, leases, heard):
        mine = claimed(leases, "late-renewal", 1.0)
        proxy.refuse()
        until(lambda: not mine.held, what="the end of A's trust")
        theirs = until(
            lambda: isinstance(got := try_lease(near, "late-renewal", ttl=30), Lease) and got, 10, "B's lease"
        )
        proxy.accept_again()
        until(lambda: mine._over, what="A's renewal")

        look = near.peek(mine.key)
        assert look is not None
        assert (look.record.token, look.record.fence, look.record.held) == (theirs.token, theirs.fence, True)
        assert heard.kinds().count(Kind.LOST) == 1
        assert theirs.fence > mine.fence
        assert theirs.release()


def test_scenario_19_a_late_release_leaves_the_next_lease_alone(rig: Rig) -> None:
    """A works on without renewal, B takes over, A ends: A's result stands, B's lease lives, exit code 0."""
    gates = [rig.folder / f"late-release-{n}" for n in (1, 2)]
    worker = rig.worker(concurrency=2, args=["-Q", "release"])
    unrenewed = {"queue": "release", "singleton": Singleton(ttl=1, max_hold=1)}
    first = rig.send("probe", "late-release", unrenewed, gate=str(gates[0]))
    rig.wait_start("late-release")
    second = rig.send(
        "probe", "late-release", {"queue": "release", "singleton": Singleton(ttl=30, on_conflict="defer")},
        gate=str(gates[1]),
    )  # fmt: skip
    rig.wait_start("late-release", 2)
    gates[0].touch()

    assert first.get(timeout=30) == first.id
    until(lambda: rig.final(first.id), what="A's release")
    assert rig.held(second.id)
    assert worker.logs().count(f"{first.id} lost") == 1
    gates[1].touch()
    assert second.get(timeout=30) == second.id
    assert worker.child.stop() == 0


def test_scenario_20_a_release_that_fails_is_tried_again(server: ValkeyServer, near: RedisStore) -> None:
    """The connection breaks at the release and comes back a moment later: the key is free long before ttl."""
    with behind_proxy(server) as (proxy, leases, _):
        lease = claimed(leases, "failed-release", 30.0)
        proxy.refuse()
        assert not lease.release()
        proxy.accept_again()

        until(lambda: not near.peek(lease.key).record.held, SOON, "the release")
        again = try_lease(near, "failed-release")
        assert isinstance(again, Lease)
        assert again.release()


def test_scenario_20_a_release_that_never_arrives_ends_with_the_ttl(
    server: ValkeyServer, near: RedisStore
) -> None:
    """If the store stays out of reach, nothing raises and the key is free after the ttl."""
    with behind_proxy(server) as (proxy, leases, _):
        lease = claimed(leases, "lost-release", 1.0)
        proxy.refuse()
        began = time.monotonic()
        assert not lease.release()

        again = until(
            lambda: isinstance(got := try_lease(near, "lost-release"), Lease) and got, what="the ttl"
        )
        assert time.monotonic() - began < SOON
        assert again.release()


def test_scenario_23_renewal_survives_an_outage(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With ttl=9 the store refuses for 4 s in the middle of a run, others trying all the time: no overlap."""
    with (
        ValkeyServer() as store,
        FaultProxy(store.port) as proxy,
        Rig(tmp_path_factory.mktemp("outage"), store=proxy.url, store_server=store) as rig,
    ):
        rig.start(2, concurrency=2)
        options = {"singleton": Singleton(ttl=9)}
        result = rig.send("probe", "outage", options, seconds=11)
        (run,) = rig.wait_start("outage")
        plan = [(3.0, proxy.refuse), (7.0, proxy.accept_again)]
        others = []
        while not result.ready():
            if plan and time.monotonic() - run.started > plan[0][0]:
                plan.pop(0)[1]()
            others.append(rig.send("probe", "outage", options))
            time.sleep(0.3)

        assert result.get() == result.id
        assert not plan
        assert not overlaps(rig.runs("outage"))
        assert rig.said("not renewed")
        assert not rig.said(f"{result.id} lost")
        assert len(others) > 20


def test_scenario_25_the_remaining_time_never_grows(server: ValkeyServer, near: RedisStore) -> None:
    """Over 50 renewals the expiry is never further away than the ttl; after kill -9 it passes within it."""
    ttl_ms, key = 300, lease_key("singleflight", "growing")
    script = (
        "import sys, time; from singleflight import lease\n"
        "with lease(sys.argv[1], 'growing', ttl=0.3): time.sleep(60)"
    )
    # The stored field beside the server's clock, in one step; `peek` would put an expiry right first.
    sample = (
        "local now = redis.call('TIME')\n"
        "return {struct.unpack('>d', redis.call('GET', KEYS[1]), 16), now[1], now[2]}"
    )
    remaining: dict[int, int] = {}
    holder = subprocess.Popen([sys.executable, "-c", script, server.url])
    try:
        with redis.Redis.from_url(server.url) as client:
            until(lambda: client.exists(key), what="the lease")

            def fifty() -> bool:
                ends, seconds, micros = (int(part) for part in client.eval(sample, 1, key))
                left = ends - (seconds * 1000 + micros // 1000)
                remaining[ends] = max(left, remaining.get(ends, left))
                return len(remaining) > 50

            until(fifty, 60, "50 renewals", every=0.002)
    finally:
        holder.kill()
        holder.wait(10)
    died = time.monotonic()

    assert max(remaining.values()) <= ttl_ms
    lease = until(lambda: isinstance(got := try_lease(near, "growing"), Lease) and got, what="the take-over")
    assert time.monotonic() - died < SOON
    assert lease.release()


def test_scenario_27_no_crash_leaves_a_key_for_ever(server: ValkeyServer) -> None:
    """Processes that claim without pause are killed at random moments: every key they leave has an expiry."""
    script = (
        "import itertools, sys\n"
        "from singleflight.stores.base import Claim\n"
        "from singleflight.stores.redis.store import RedisStore\n"
        "store = RedisStore(sys.argv[1])\n"
        "for n in itertools.count():\n"
        "    store.claim(Claim(f'crash:{sys.argv[2]}:{n}', 'run', 0, 'token', 60000, 60000))"
    )
    with redis.Redis.from_url(server.url) as client:
        for number in range(8):
            claimant = subprocess.Popen([sys.executable, "-c", script, server.url, str(number)])
            try:
                until(lambda: client.exists(f"crash:{number}:60"), what="some claims")  # noqa: B023 - asked at once
                time.sleep(random.random() / 20)
            finally:
                claimant.kill()
                claimant.wait(10)
        keys = list(client.scan_iter("crash:*", count=1000))

        assert len(keys) >= 8 * 60
        assert all(client.ttl(key) > 0 for key in keys)


@pytest.mark.parametrize("who", ["child", "worker"])
def test_scenario_29_a_paused_holder_learns_that_it_lost(rig: Rig, who: str) -> None:
    """Stopped for three ttl, A wakes up, knows before it does anything, and leaves B's lease alone."""
    key, gates = f"paused-{who}", [rig.folder / f"paused-{who}-{n}" for n in (1, 2)]
    paused = rig.worker(concurrency=1, args=["-Q", key])
    options = {"singleton": Singleton(ttl=1)}
    first = rig.send("probe", key, {**options, "queue": key}, gate=str(gates[0]), then="lease")
    (run,) = rig.wait_start(key)
    stopped = [run.pid] if who == "child" else [paused.child.pid, run.pid]
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        second = rig.send("probe", key, options, gate=str(gates[1]), then="lease")
        rig.wait_start(key, 2)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    until(lambda: f"{first.id} lost" in paused.logs(), what="the report of the loss")
    record = rig.record_of(second.id)
    gates[0].touch()
    lease = first.get(timeout=30)

    assert lease["held"] is False
    assert rig.record_of(second.id).token == record.token
    assert rig.held(second.id)
    gates[1].touch()
    assert second.get(timeout=30)["fence"] > lease["fence"]


def test_scenario_30_forked_children_renew_their_own_leases(rig: Rig) -> None:
    """Parents that used the library before they forked: each child keeps its lease over three ttl."""
    options = {"singleton": Singleton(ttl=1)}
    results = [rig.send("probe", f"fork-{n}", options, seconds=3) for n in range(6)]
    for n in range(6):
        rig.wait_start(f"fork-{n}")
    others = []
    while not all(result.ready() for result in results):
        others += [rig.send("probe", f"fork-{n}", options) for n in range(6)]
        time.sleep(0.4)

    runs = [run for run in rig.log.runs() if run.key.startswith("fork-")]
    assert rig.states(results) == ["SUCCESS"] * 6
    assert not overlaps(runs)
    assert len({run.pid for run in runs if run.run in {result.id for result in results}}) == 6
    assert not any(rig.said(f"{result.id} lost") for result in results)
    assert len(others) >= 30


def test_scenario_32_a_lease_belongs_to_no_thread(near: RedisStore) -> None:
    """Claimed in one thread and released in another; two leases of one thread are not mixed up."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        first, second = (
            one.submit(try_lease, near, name, ttl=1).result() for name in ("thread-1", "thread-2")
        )
        assert isinstance(first, Lease)
        assert isinstance(second, Lease)
        before = near.peek(first.key).record.expires_ms
        until(lambda: near.peek(first.key).record.expires_ms > before, what="a renewal by the keeper")

        assert other.submit(first.release).result()
        assert not near.peek(first.key).record.held
        assert near.peek(second.key).record.token == second.token
        assert other.submit(second.release).result()


def claim(store: MemoryStore, run: str, window: float) -> object:
    """Claim as a delivery of a run would."""
    return store.claim(Claim("window", run, 0, f"token-{run}", 30_000, round(window * 1000)))


def test_scenario_35_a_window_outlives_a_short_run() -> None:
    """Window of 60 s, run of 1 s: calls at +5 s and +59 s are duplicates, the one at +61 s runs."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    claim(store, "first", 60)
    clock.advance(1)
    store.release(Release("window", "first", 0, "token-first", Outcome.FINISHED))

    answers = []
    for wait in (4, 54, 2):
        clock.advance(wait)
        answers.append(claim(store, f"after-{wait}", 60))
    assert [isinstance(answer, Busy) and answer.reason for answer in answers] == [
        Reason.WINDOW,
        Reason.WINDOW,
        False,
    ]


def test_scenario_35_a_late_second_worker_finds_the_window_closed(rig: Rig) -> None:
    """On real workers: after a short run the window still skips others, and then lets one start."""
    options = {"singleton": Singleton(ttl=1, window=3)}
    first = rig.send("probe", "window", options)
    (start,) = rig.wait_start("window")
    assert first.get(timeout=30) == first.id
    results = []
    while len(rig.runs("window")) < 2:
        results.append(rig.send("probe", "window", options))
        assert time.monotonic() - start.started < 30
        time.sleep(0.3)

    assert rig.runs("window")[1].started - start.started > 2.9
    assert rig.states(results).count("SUCCESS") == 1


def test_scenario_36_a_run_longer_than_its_window_is_not_joined() -> None:
    """Window of 5 s, run of 12 s: the call at +7 s is a duplicate of the running one, that at +13 s runs."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    claim(store, "long", 5)
    clock.advance(7)
    during = claim(store, "during", 5)
    clock.advance(5)
    store.release(Release("window", "long", 0, "token-long", Outcome.FINISHED))
    clock.advance(1)
    after = claim(store, "after", 5)

    assert isinstance(during, Busy)
    assert during.reason is Reason.RUNNING
    assert not isinstance(after, Busy)


def test_scenario_36_a_long_run_is_alone_after_its_window_too(rig: Rig) -> None:
    """On real workers: past its window and three times its ttl a run still keeps others out."""
    options = {"singleton": Singleton(ttl=1, window=0.5)}
    gate = rig.folder / "long-gate"
    first = rig.send("probe", "long", options, gate=str(gate))
    (start,) = rig.wait_start("long")
    until(lambda: time.monotonic() - start.started > 3, what="three ttl")
    during = rig.send("probe", "long", options)
    assert rig.states([during]) == ["REVOKED"]
    gate.touch()
    assert first.get(timeout=30) == first.id
    after = rig.send("probe", "long", options)

    assert after.get(timeout=30) == after.id
    assert len(rig.runs("long")) == 2
