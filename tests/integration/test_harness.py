"""The integration harness itself: real workers and beats that can be killed and started again."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import keys_without_expiry
from tests.support.bodylog import of_key, overlaps, starts
from tests.support.child import MARK, Child, survivors
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_celery import CeleryTestSetup, RedisTestBroker

    from tests.support.beats import Beat
    from tests.support.bodylog import BodyLog


@pytest.mark.smoke
def test_a_killed_worker_comes_back_and_runs_tasks_again(
    celery_setup: CeleryTestSetup, body_log: BodyLog, tmp_path: Path
) -> None:
    """A worker of two processes runs a task, dies of SIGKILL with its pool, and works after a restart."""
    worker = celery_setup.worker
    body = celery_setup.app.tasks["body"]
    assert celery_setup.ready(control=True, docker=True)
    first = body.delay("first")
    assert first.get(timeout=30) == first.id
    assert len(worker.pool()) == 2

    cut = body.delay("cut", gate=str(tmp_path / "never"))
    until(lambda: starts(body_log.runs(), cut.id), what="the start of the body to be cut")
    worker.kill()
    assert not worker.alive
    assert not worker.pool()
    worker.restart()
    again = body.delay("again")
    assert again.get(timeout=30) == again.id

    runs = body_log.runs()
    assert [(run.key, run.how) for run in runs] == [
        ("first", "returned"),
        ("cut", None),
        ("again", "returned"),
    ]
    assert worker.logs().count(" ready.") == 2


def test_one_pool_child_can_be_killed_alone(
    celery_setup: CeleryTestSetup, body_log: BodyLog, tmp_path: Path
) -> None:
    """The pool child that runs a body can be killed by its pid; its worker lives on and replaces it."""
    worker = celery_setup.worker
    body = celery_setup.app.tasks["body"]
    body.delay("cut", gate=str(tmp_path / "never"))
    (run,) = until(body_log.runs, what="the start of the body")

    worker.kill_pool_child(run.pid)
    until(lambda: run.pid not in worker.pool() and len(worker.pool()) == 2, what="a new pool child")

    after = body.delay("after")
    assert after.get(timeout=30) == after.id
    assert worker.alive


@pytest.mark.workers(2, concurrency=1)
def test_the_log_shows_an_overlap_where_nothing_prevents_it(
    celery_setup: CeleryTestSetup, body_log: BodyLog, tmp_path: Path
) -> None:
    """Two plain copies of one task run at once on two workers, and the log says so: the witness can see."""
    body = celery_setup.app.tasks["body"]
    gate = tmp_path / "gate"
    results = [body.delay("both", gate=str(gate)) for _ in range(2)]
    until(lambda: len(body_log.runs()) == 2, what="two bodies at once")

    gate.touch()
    for result in results:
        result.get(timeout=30)

    (pair,) = overlaps(body_log.runs())
    assert {run.run for run in pair} == {result.id for result in results}
    assert len({run.pid for run in pair}) == 2


@pytest.mark.usefixtures("celery_setup")
def test_every_plain_beat_replica_sends_each_tick(start_beat: Callable[..., Beat], body_log: BodyLog) -> None:
    """Two `celery beat` without singleflight send twice as many ticks as one: the trouble that we cure."""
    schedule = {"tick": {"task": "body", "schedule": 1.0, "args": ["tick"]}}
    beats = [start_beat(schedule=schedule) for _ in range(2)]
    for beat in beats:
        beat.wait_ready()

    until(lambda: len(of_key(body_log.runs(), "tick")) >= 6, what="six ticks")
    exits = [beat.stop() for beat in beats]

    assert exits == [0, 0]
    assert all(beat.log().count("Sending due task tick") >= 2 for beat in beats)


def test_a_stopped_worker_is_ended_with_its_group(celery_setup: CeleryTestSetup) -> None:
    """A worker under SIGSTOP, which can handle no signal, is still ended by the teardown's kill."""
    worker = celery_setup.worker
    worker.kill(signal.SIGSTOP)

    worker.teardown()

    assert not worker.alive
    assert not worker.pool()


def test_a_child_that_lost_its_parent_is_found_and_ended_with_the_group(tmp_path: Path) -> None:
    """A process whose parent is gone is still among the survivors, and ends with its group."""
    mark = os.environ[MARK]
    child = Child(["sh", "-c", "sleep 300 & echo up; exit 3"], log=tmp_path / "log", ready="up")
    assert child.wait() == 3
    orphans = [process for process in survivors(mark) if process.cmdline() == ["sleep", "300"]]

    child.kill()

    assert len(orphans) == 1
    assert not [process for process in survivors(mark) if process.pid == orphans[0].pid]


def test_a_program_that_ends_instead_of_starting_fails_the_wait_with_its_log(tmp_path: Path) -> None:
    """Waiting for a program that has ended stops at once and shows what it printed."""
    child = Child(["sh", "-c", "echo no such option"], log=tmp_path / "log", ready="up")

    with pytest.raises(AssertionError, match="ended with 0:\nno such option"):
        child.wait_ready()


def test_a_key_without_expiry_is_found(celery_broker: RedisTestBroker) -> None:
    """Of the server's keys, the check that ends every test names ours that would stay for ever."""
    with celery_broker.container.client as client:
        client.set("singleflight:{a}", "1")
        client.set("singleflight:{b}", "1", ex=60)
        client.set("celery", "1")
        found = keys_without_expiry(celery_broker.container)
        client.delete("singleflight:{a}")

    assert found == ["singleflight:{a}"]
