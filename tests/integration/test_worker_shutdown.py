"""Workers that are asked to stop in every way Celery knows: what is lost, what comes back, what is free."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import celery
import pytest

from singleflight import Singleton
from tests.support.rig import Rig
from tests.support.sweep import SWEEP
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = Singleton(ttl=60)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run broker and store for all tests of this file; each test has a worker and a queue of its own."""
    conf = {"broker_transport_options": {"visibility_timeout": 5, **SWEEP}}
    with Rig(tmp_path_factory.mktemp("shutdown"), conf=conf) as rig:
        yield rig
        assert not rig.endless_keys()


def test_a_warm_shutdown_lets_the_run_finish_and_frees_its_key(rig: Rig) -> None:
    """SIGTERM: the run ends as usual, its result is stored, its lease is given back, the exit is clean."""
    worker = rig.worker(concurrency=1, args=["-Q", "warm"])
    gate = rig.folder / "warm-gate"
    result = rig.send("probe", "warm", {"queue": "warm", "singleton": LONG}, gate=str(gate))
    rig.wait_start("warm")
    worker.kill(signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.logs(), what="the warm shutdown")
    assert rig.held(result.id)
    gate.touch()

    assert worker.child.wait() == 0
    assert result.get(timeout=30) == result.id
    assert not rig.held(result.id)


@pytest.mark.parametrize("task", ["probe", "late"])
def test_a_cold_shutdown_leaves_no_lease(rig: Rig, task: str) -> None:
    """SIGQUIT: the body is cut; nobody holds the key two seconds later, and a late-acked run comes back."""
    queue = f"cold-{task}"
    worker = rig.worker(concurrency=1, args=["-Q", queue])
    gate = rig.folder / f"{queue}-gate"
    result = rig.send(task, queue, {"queue": queue, "singleton": LONG}, gate=str(gate))
    rig.wait_start(queue)
    worker.kill(signal.SIGQUIT)
    worker.child.wait()
    until(lambda: not rig.held(result.id), SOON, "the end of the lease")
    gate.touch()
    rig.worker(concurrency=1, args=["-Q", queue])

    if task == "late":
        assert result.get(timeout=30) == result.id
        assert [run.run for run in rig.runs(queue)] == [result.id, result.id]
    after = rig.send(task, queue, {"queue": queue, "singleton": LONG})
    assert after.get(timeout=30) == after.id


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery has a soft shutdown from 5.5 on")
def test_a_soft_shutdown_that_runs_out_requeues_the_run(rig: Rig) -> None:
    """A soft shutdown cuts what takes too long: the run comes back and finds its key free."""
    conf = {"APP_CONF": '{"worker_soft_shutdown_timeout": 1.0}'}
    worker = rig.worker(concurrency=1, args=["-Q", "soft"], env=conf)
    gate = rig.folder / "soft-gate"
    result = rig.send("late", "soft", {"queue": "soft", "singleton": LONG}, gate=str(gate))
    rig.wait_start("soft")
    worker.kill(signal.SIGQUIT)
    worker.child.wait()
    until(lambda: not rig.held(result.id), SOON, "the end of the lease")
    gate.touch()
    rig.worker(concurrency=1, args=["-Q", "soft"])

    assert result.get(timeout=30) == result.id
    assert [run.run for run in rig.runs("soft")] == [result.id, result.id]


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery has a soft shutdown from 5.5 on")
def test_a_soft_shutdown_that_suffices_ends_the_run_as_finished(rig: Rig) -> None:
    """A run that ends within the soft shutdown's time is over, though Celery cancels its request then."""
    conf = {"APP_CONF": '{"worker_soft_shutdown_timeout": 4.0}'}
    worker = rig.worker(concurrency=1, args=["-Q", "enough"], env=conf)
    gate = rig.folder / "enough-gate"
    result = rig.send("late", "enough", {"queue": "enough", "singleton": LONG}, gate=str(gate))
    rig.wait_start("enough")
    worker.kill(signal.SIGQUIT)
    until(lambda: "Initiating Soft Shutdown" in worker.logs(), what="the soft shutdown")
    gate.touch()
    worker.child.wait()

    assert result.get(timeout=30) == result.id
    record = rig.record_of(result.id)
    assert (record.outcome, record.held) == ("finished", False)
    assert rig.final(result.id)


def test_expired_runs_and_a_store_that_hangs_do_not_hold_up_the_exit(tmp_path: Path) -> None:
    """Sixty runs that will not start want their waiting slots freed: the worker does not wait for each."""
    waits = Singleton(at_most_one="waiting_and_running")
    with Rig(tmp_path) as rig:
        for number in range(60):
            rig.send("probe", f"expired-{number}", {"queue": "expired", "expires": 0.5, "singleton": waits})
        time.sleep(0.6)
        rig.store.pause()
        worker = rig.worker(concurrency=1, args=["-Q", "expired"])
        until(lambda: worker.logs().count("Discarding revoked task") >= 60, what="sixty expired runs")
        sent = time.monotonic()
        worker.kill(signal.SIGTERM)
        assert worker.child.wait() == 0
        took = time.monotonic() - sent

    assert took < 20
