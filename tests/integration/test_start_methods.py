"""Workers and embedded beats whose processes are started by each of the methods that there are."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import celery
import pytest

from singleflight import Singleton
from tests.integration import publish_app
from tests.support.beats import Replicas, entry
from tests.support.bodylog import overlaps, starts
from tests.support.rig import Rig
from tests.support.starting import METHODS
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHAOS = bool(os.environ.get("SINGLEFLIGHT_CHAOS"))
PUBLISHES = 200 if CHAOS else 40
LONG = {"singleton": Singleton(ttl=60)}
SPAWNS = pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery 5.7 brought worker_pool_start_method")


@pytest.fixture(scope="module", params=METHODS if CHAOS else METHODS[1:])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers for all tests of this file; what is given to `install` must reach their processes."""
    with Rig(tmp_path_factory.mktemp(request.param), install={"prefix": "sent-along"}) as rig:
        args = ["-I", publish_app.__name__]
        rig.start(2, concurrency=2 if CHAOS else 1, start_method=request.param, args=args)
        # A worker is ready before the processes that it starts afresh.
        rig.states([rig.send("plain", "up", seconds=0.5) for _ in range(4)])
        yield rig
        assert not rig.endless_keys()
        assert all(key.startswith("sent-along:") for key in rig.records())


def test_of_many_publishes_none_overlap_and_every_lease_is_given_back(rig: Rig) -> None:
    """Nothing overlaps, who did not run was skipped, and when all is over nobody holds anything."""
    results = [rig.send("probe", "crowd", seconds=0.2) for _ in range(PUBLISHES)]
    states = rig.states(results, timeout=200)

    runs = rig.runs("crowd")
    ran = {run.run for run in runs}
    assert not overlaps(runs)
    assert 0 < len(ran) == len(runs) < PUBLISHES
    assert {run.fence is not None for run in runs} == {True}
    assert [state for result, state in zip(results, states, strict=True) if result.id in ran] == [
        "SUCCESS"
    ] * len(ran)
    assert states.count("REVOKED") == PUBLISHES - len(ran)
    until(lambda: not any(record.held for record in rig.records().values()), 5, "the last release")
    # What the full size is run for.
    print(f"{PUBLISHES} publishes: {len(ran)} ran, {states.count('REVOKED')} skipped, no overlap, none held")  # noqa: T201


def test_deferred_and_retried_runs_all_run(rig: Rig) -> None:
    """A duplicate that waits, and a run that retries, carry what they need from process to process."""
    waits = {"singleton": Singleton(on_conflict="defer")}
    results = [rig.send("probe", "turns", waits, seconds=0.1, then="retry") for _ in range(3)]

    assert rig.states(results) == ["SUCCESS"] * 3
    assert [len(starts(rig.runs("turns"), result.id)) for result in results] == [3] * 3
    assert not overlaps(rig.runs("turns"))


def test_a_body_that_publishes_is_looked_at_too(rig: Rig) -> None:
    """Tasks that a body publishes are the singletons of its own process."""
    result = rig.send("loop-once", "loop", rounds=2)

    assert result.get(timeout=30)[:2] == ["accepted", "duplicate"]
    rig.wait_start("loop", 2)


def test_a_lost_lease_interrupts_its_body(rig: Rig) -> None:
    """The signal that on_lost="abort" sends is handled in a process of any start."""
    result = rig.send("probe", "abort", {"singleton": Singleton(on_lost="abort")}, block=30)
    rig.wait_start("abort")
    rig.evict(result.id)

    assert rig.states([result]) == ["FAILURE"]
    assert [run.how for run in rig.runs("abort")] == ["LeaseLost"]


def test_the_main_process_frees_the_key_of_a_killed_child(rig: Rig) -> None:
    """It knows key and token of a child that was started in any way."""
    killed = rig.send("probe", "killed", LONG, seconds=30)
    (run,) = rig.wait_start("killed")
    os.kill(run.pid, signal.SIGKILL)

    assert rig.states([killed]) == ["FAILURE"]
    until(lambda: not rig.held(killed.id), 5, "the release by the main process")
    after = rig.send("probe", "killed", LONG)
    assert after.get(timeout=30) == after.id


@SPAWNS
def test_celerys_own_setting_is_heeded(tmp_path: Path) -> None:
    """Processes that worker_pool_start_method="spawn" starts take leases."""
    with Rig(tmp_path, conf={"worker_pool_start_method": "spawn"}) as rig:
        rig.start(1, concurrency=1)
        lease = rig.send("probe", "setting", then="lease").get(timeout=30)

        assert lease["held"]


@pytest.mark.parametrize("method", METHODS[1:] if CHAOS else ["spawn"])
def test_an_embedded_beat_shares_its_ticks(tmp_path: Path, method: str) -> None:
    """`celery worker -B --scheduler singleflight` has its leases in the beat's process as well."""
    with Replicas(tmp_path, mailbox=False) as replicas:
        replicas.schedule = {"one": entry("embedded", 1.0, "once")}
        args = ["-B", "--scheduler", "singleflight", "-s", tmp_path / "schedule"]
        worker = replicas.work(concurrency=1, start_method=method, args=args)
        until(lambda: len(replicas.received("once")) >= 3, what="three ticks")

        received = replicas.received("once")
        assert len(received) == len(set(received))
        until(replicas.bodies.runs, what="the one run in its window")
        assert len(replicas.bodies.runs()) == 1
        assert "call singleflight.celery.install(app)" not in worker.logs()
