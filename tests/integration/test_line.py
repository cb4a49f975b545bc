"""Runs that wait in the line of their key: called in order, at once, and whoever is killed meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Singleton
from tests.support.bodylog import overlaps, starts
from tests.support.rig import Rig
from tests.support.servers import ValkeyServer
from tests.support.sweep import SWEEP
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.timeout(180)

APP = "tests.integration.line_app"
CONF = {
    "singleflight_waiting": "line",
    "broker_transport_options": {"visibility_timeout": 5, **SWEEP},
}
DEFER = {"singleton": Singleton(on_conflict="defer")}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers of two processes for all tests of this file."""
    with Rig(tmp_path_factory.mktemp("line"), conf=CONF) as rig:
        yield rig.start(2, concurrency=2, app=APP)
        # What a sweep has looked at stays known.
        assert not [key for key in rig.endless_keys() if ":home:" not in key]


def in_line(rig: Rig, key: str, count: int, task: str = "late", **how: Any) -> list[Any]:
    """Let one run work until a gate opens, and others stand in line behind it, in order."""
    results = [rig.send(task, key, DEFER, gate=str(rig.folder / f"{key}-gate"))]
    rig.wait_start(key)
    for _ in range(count):
        results.append(rig.send(task, key, DEFER, seconds=0.05, **how))
        rig.until_waiting(results[-1])
    return results


def replace_dead(rig: Rig, name: str) -> None:
    """Start another worker in the place of the one that was killed."""
    (dead, *_) = until(lambda: [one for one in rig.workers if not one.child.alive], what="its end")
    rig.workers.remove(dead)
    rig.worker(name=f"after-{name}", concurrency=2, app=APP)


def test_who_came_first_runs_first_and_the_next_one_starts_at_once(rig: Rig) -> None:
    """Deferred runs of one key start in the order of their arrival, each soon after the one before."""
    results = in_line(rig, "order", 8)
    (rig.folder / "order-gate").touch()

    assert rig.states(results) == ["SUCCESS"] * 9
    runs = rig.runs("order")
    assert [run.run for run in runs] == [result.id for result in results]
    assert not overlaps(runs)
    gaps = sorted(after.started - before.last_seen for before, after in pairwise(runs))
    assert gaps[len(gaps) // 2] < 1


@pytest.mark.parametrize("point", ["publish", "sent"])
@pytest.mark.parametrize("whom", ["child", "worker"])
def test_a_call_whose_publisher_dies_is_made_again(rig: Rig, point: str, whom: str) -> None:
    """Killed after its release and before it has sent the next run on, or said so: the sweep does it."""
    key = f"{whom}-{point}"
    results = in_line(rig, key, 2)
    (rig.folder / f"kill-{whom}-{point}").touch()
    (rig.folder / f"{key}-gate").touch()

    until(lambda: not (rig.folder / f"kill-{whom}-{point}").exists(), what="the kill")
    died = time.monotonic()
    if whom == "worker":
        replace_dead(rig, key)
    rig.wait_start(key, 3)
    assert rig.runs(key)[1].started - died < SOON
    assert rig.states(results[1:]) == ["SUCCESS"] * 2
    runs = rig.runs(key)
    # A call that has lapsed lets the next one go first.
    assert sorted(run.run for run in runs) == sorted(result.id for result in results)
    assert not overlaps(runs)


@pytest.mark.parametrize("whom", ["child", "worker"])
def test_a_run_that_is_parked_and_not_acknowledged_runs_once(rig: Rig, whom: str) -> None:
    """Killed between park and acknowledgement, it comes back, and is known for the one that waits."""
    key = f"{whom}-park"
    results = in_line(rig, key, 1)
    (rig.folder / f"kill-{whom}-park").touch()
    results.append(rig.send("late", key, DEFER, seconds=0.05))
    rig.until_waiting(results[-1])
    until(lambda: not (rig.folder / f"kill-{whom}-park").exists(), what="the kill")
    if whom == "worker":
        replace_dead(rig, key)
    (rig.folder / f"{key}-gate").touch()

    def returned() -> list[str]:
        return sorted(run.run for run in rig.runs(key) if run.how == "returned")

    until(lambda: len(returned()) >= 3, 60, "all runs")
    until(lambda: rig.sweep() or rig.broker_is_empty(), 60, "the end of all copies", every=0.5)
    assert returned() == sorted(result.id for result in results)
    assert not overlaps(rig.runs(key))


def test_a_retry_arrives_behind_those_who_wait(rig: Rig) -> None:
    """A run that retries lets the next one go first, and comes back after it."""
    results = in_line(rig, "retry", 1, then="retry")
    results.append(rig.send("late", "retry", DEFER))
    rig.until_waiting(results[-1])
    (rig.folder / "retry-gate").touch()

    assert rig.states(results) == ["SUCCESS"] * 3
    runs = rig.runs("retry")
    assert [run.attempt for run in starts(runs, results[1].id)] == [0, 1, 2]
    assert runs[-1].run == results[1].id
    assert not overlaps(runs)


def test_a_revoked_run_leaves_the_line(rig: Rig) -> None:
    """It does not start, and the one behind it does, as soon as its message has come."""
    results = in_line(rig, "revoked", 2)
    results[1].revoke()
    told = f"Tasks flagged as revoked: {results[1].id}"
    until(lambda: all(told in worker.logs() for worker in rig.workers), what="the revocation")
    (rig.folder / "revoked-gate").touch()

    assert rig.states(results) == ["SUCCESS", "REVOKED", "SUCCESS"]
    assert [run.run for run in rig.runs("revoked")] == [results[0].id, results[2].id]


def test_a_run_gives_up_when_it_is_called_too_late(rig: Rig) -> None:
    """``give_up_after`` is looked at when the message arrives again and meets another one."""
    results = [rig.send("late", "tired", DEFER, gate=str(rig.folder / "tired-gate"))]
    rig.wait_start("tired")
    one = {"singleton": Singleton(on_conflict="coalesce")}
    results += [rig.send("late", "tired", one)]
    rig.until_waiting(results[-1])
    results += [rig.send("late", "tired", one) for _ in range(3)]
    assert rig.states(results[2:]) == ["REVOKED"] * 3
    (rig.folder / "tired-gate").touch()

    assert rig.states(results[:2]) == ["SUCCESS"] * 2


def test_an_expired_run_leaves_the_line(rig: Rig) -> None:
    """It does not start when it is called too late, and the one behind it does."""
    results = in_line(rig, "expired", 0)
    expires = datetime.now(UTC) + timedelta(
        seconds=5
    )  # far enough for a busy machine to put it into the line
    results.append(rig.send("late", "expired", {**DEFER, "expires": expires}))
    rig.until_waiting(results[-1])
    results.append(rig.send("late", "expired", DEFER))
    rig.until_waiting(results[-1])
    until(lambda: datetime.now(UTC) > expires, what="the time at which it expires")
    (rig.folder / "expired-gate").touch()

    assert rig.states(results) == ["SUCCESS", "REVOKED", "SUCCESS"]
    assert [run.run for run in rig.runs("expired")] == [results[0].id, results[2].id]


def test_who_joins_ends_as_the_other_one_does_as_soon_as_that_has_ended(rig: Rig) -> None:
    """Runs that join are published at the end of the run that they have met, and run no body."""
    how = {"gate": str(rig.folder / "joined-gate"), "then": "retry-later"}
    results = [rig.send("late", "joined", DEFER, **how)]
    rig.wait_start("joined")
    for _ in range(3):
        results.append(rig.send("late", "joined", {"singleton": Singleton(on_conflict="join")}))
        rig.until_waiting(results[-1])
    (rig.folder / "joined-gate").touch()

    assert [result.get(timeout=30) for result in results] == [results[0].id] * 4
    assert {run.run for run in rig.runs("joined")} == {results[0].id}


def test_publishers_see_who_waits_in_line(rig: Rig) -> None:
    """Under ``waiting_and_running`` one run waits, and the caller of another one gets its result."""
    options = {"singleton": Singleton(at_most_one="waiting_and_running")}
    results: list[Any] = [rig.send("late", "seen", options, gate=str(rig.folder / "seen-gate"))]
    rig.wait_start("seen")
    results.append(rig.send("late", "seen", options))
    rig.until_waiting(results[-1])
    results.append(rig.send("late", "seen", options))

    assert (results[2].id, results[2].duplicate) == (results[1].id, True)
    (rig.folder / "seen-gate").touch()
    assert rig.states(results) == ["SUCCESS"] * 3
    assert len(rig.runs("seen")) == 2


def test_what_is_too_long_for_a_line_waits_by_countdown(rig: Rig) -> None:
    """A message of more than 256 KiB is called like the others, and runs."""
    results = in_line(rig, "long", 0)
    results += [rig.send("late", "long", {**DEFER, "headers": {"padding": "x" * 300_000}})]
    results += [rig.send("late", "long", DEFER)]
    rig.until_waiting(results[1])
    rig.until_waiting(results[2])
    (rig.folder / "long-gate").touch()

    assert rig.states(results) == ["SUCCESS"] * 3
    assert not overlaps(rig.runs("long"))


def test_who_waits_outlives_a_restart_of_a_store_that_saves(tmp_path: Path) -> None:
    """The store is killed and comes back with what it had: all run, in order; the outage is told once."""
    saves = ValkeyServer("--appendonly", "yes", "--appendfsync", "always")
    with saves as store, Rig(tmp_path, conf=CONF, store_server=store) as rig:
        rig.start(1, concurrency=2, app=APP)
        results = in_line(rig, "saved", 4)
        store.stop()
        until(lambda: rig.said("nobody is called"), what="the sweep's word")
        store.start()
        rig.until_waiting(results[-1])
        (rig.folder / "saved-gate").touch()

        assert rig.states(results) == ["SUCCESS"] * 5
        assert [run.run for run in rig.runs("saved")] == [result.id for result in results]
        assert rig.workers[0].logs().count("nobody is called") == 1


def test_nothing_is_lost_and_nothing_overlaps_while_processes_are_killed(tmp_path: Path) -> None:
    """Fifty runs of one key; every now and then a pool process, or a whole worker, is killed."""
    dice = random.Random(7)
    with Rig(tmp_path, conf=CONF) as rig:
        rig.start(2, concurrency=2, app=APP)
        results = [rig.send("late", "many", DEFER, seconds=0.1) for _ in range(50)]
        kills = 0
        end = time.monotonic() + 120
        while not all(result.ready() for result in results) and time.monotonic() < end:
            time.sleep(dice.uniform(0.5, 1.5))
            worker = dice.choice(rig.workers)
            children = worker.child.children()
            kills += 1
            if kills % 6 == 0:
                worker.child.kill()
                rig.workers.remove(worker)
                rig.worker(name=f"worker-{kills}", concurrency=2, app=APP)
            elif children and kills < 25:
                os.kill(dice.choice(children), signal.SIGKILL)

        states = [result.state for result in results]
        assert states == ["SUCCESS"] * 50, (kills, states)
        runs = rig.runs("many")
        assert not overlaps(runs)
        assert {run.run for run in runs if run.how == "returned"} == {result.id for result in results}
