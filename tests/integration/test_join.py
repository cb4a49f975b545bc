"""``on_conflict="join"``: a duplicate ends as the run it met, or runs itself if that run has no outcome."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain

from singleflight import ConfigurationError, Singleton
from singleflight.celery.checks import SetUp
from tests.integration import canvas_app, publish_app, worker_app
from tests.support.bodylog import overlaps
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery.result import AsyncResult


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers for all tests of this file."""
    with Rig(tmp_path_factory.mktemp("join")) as rig:
        modules = f"{publish_app.__name__},{canvas_app.__name__}"
        yield rig.start(2, concurrency=4, args=["-I", modules])
        assert not rig.endless_keys()


def meet(rig: Rig, key: str, count: int = 1, **how: Any) -> tuple[AsyncResult, list[AsyncResult], Path]:
    """Let duplicates meet a run that works until a gate opens; return it, them and the gate."""
    gate = rig.folder / f"{key}-gate"
    first = rig.send("join", key, gate=str(gate), **how)
    rig.wait_start(key)
    others = [rig.send("join", key) for _ in range(count)]
    until(lambda: all(rig.said(f"{other.id} deferred") for other in others), what="the duplicates' deferral")
    return first, others, gate


@pytest.mark.smoke
def test_duplicates_take_over_the_value(rig: Rig) -> None:
    """Four calls, one run, one value."""
    first, others, gate = meet(rig, "value", 3)
    gate.touch()

    assert [result.get(timeout=30) for result in [first, *others]] == [first.id] * 4
    assert [run.run for run in rig.runs("value")] == [first.id]


@pytest.mark.smoke
def test_duplicates_take_over_the_exception(rig: Rig) -> None:
    """The same error, of the same type, also where a chain ends with it."""
    first, (other,), gate = meet(rig, "error", then="fail")
    flow = chain(
        rig.app.tasks["join"].si("error"), rig.app.tasks["canvas.step"].si("error-next")
    ).apply_async()
    until(lambda: rig.said(f"{flow.parent.id} deferred"), what="the flow's deferral")
    gate.touch()

    for result in (first, other, flow.parent, flow):
        with pytest.raises(ValueError, match=r"^error$"):
            result.get(timeout=30)
    assert len(rig.runs("error")) == 1
    assert not rig.runs("error-next")


def test_a_duplicate_waits_for_the_retries(rig: Rig) -> None:
    """An attempt that failed is no outcome: the last one's is."""
    first, (other,), gate = meet(rig, "retries", then="retry-later")
    gate.touch()

    assert other.get(timeout=30) == first.id
    assert [(run.run, run.attempt) for run in rig.runs("retries")] == [(first.id, n) for n in range(3)]


@pytest.mark.parametrize("end", ["revoked", "died", "forgotten"])
def test_a_duplicate_runs_itself_if_there_is_nothing_to_take_over(rig: Rig, end: str) -> None:
    """Revoked, dead with its process, or its result is gone: somebody has to run."""
    first, (other,), gate = meet(rig, end)
    if end == "revoked":
        first.revoke(terminate=True, signal="SIGKILL")
    elif end == "died":
        (run,) = rig.runs(end)
        os.kill(run.pid, signal.SIGKILL)
    else:
        gate.touch()
        until(first.ready, what="the result")
        first.forget()

    if end != "forgotten":
        until(first.ready, what="the first run's end")
        gate.touch()
    assert other.get(timeout=40) in (first.id, other.id)
    runs = rig.runs(end)
    assert runs[0].run == first.id
    assert not overlaps(runs)
    if end != "forgotten":
        assert runs[-1].run == other.id


def test_a_duplicate_runs_itself_if_a_cold_shutdown_cut_the_run_it_met(rig: Rig) -> None:
    """SIGQUIT to a worker whose message is acknowledged: nothing comes back, so nobody may wait for it."""
    doomed = rig.worker(concurrency=1, args=["-I", publish_app.__name__, "-Q", "doomed"])
    gate = rig.folder / "cold-gate"
    first = rig.send("join", "cold", {"queue": "doomed"}, gate=str(gate))
    rig.wait_start("cold")
    other = rig.send("join", "cold")
    until(lambda: rig.said(f"{other.id} deferred"), what="the duplicate's deferral")
    doomed.kill(signal.SIGQUIT)
    doomed.child.wait()

    assert other.get(timeout=60) == other.id
    assert [run.run for run in rig.runs("cold")] == [first.id, other.id]


def test_a_fresh_call_never_gets_an_old_result(rig: Rig) -> None:
    """Duplicates that have waited long leave nothing behind: who calls afterwards gets a run of its own."""
    gate = rig.folder / "fresh-gate"
    first = rig.send("join", "fresh", gate=str(gate))
    rig.wait_start("fresh")
    other = rig.send("join", "fresh")
    until(lambda: deferrals(rig, other.id) >= 5, 40, "five deferrals")
    gate.touch()
    assert other.get(timeout=30) == first.id
    fresh = rig.send("join", "fresh")

    assert fresh.get(timeout=30) == fresh.id


def deferrals(rig: Rig, run: str) -> int:
    """Return how often workers have deferred a run."""
    return sum(worker.logs().count(f"{run} deferred") for worker in rig.workers)


def plain(x: int = 0) -> int:
    """Have a parameter."""
    return x


@pytest.mark.parametrize(
    ("options", "singleton", "message"),
    [
        ({"ignore_result": True}, {"by": "x"}, "ignore_result"),
        ({}, {"by": "x", "name": "shared"}, "another task's result"),
        ({}, {}, "without `by`"),
    ],
)
def test_join_is_refused_where_it_cannot_work(
    options: dict[str, Any], singleton: dict[str, Any], message: str
) -> None:
    """The declaration says what contradicts it."""
    app = worker_app.make_app("memory://", "redis://", "memory://")
    task = app.task(
        name="refused", shared=False, singleton=Singleton(on_conflict="join", **singleton), **options
    )(plain)

    with pytest.raises(ConfigurationError, match=message):
        task.delay()
    app.close()


@pytest.mark.parametrize(
    ("options", "singleton", "message"),
    [
        ({"ignore_result": True}, {"by": "x"}, "ignore_result"),
        ({}, {"by": "x", "name": "shared"}, "another task's result"),
        ({}, {"by": "y"}, "y"),
        ({}, {"by": "x", "at_most_one": "waiting_and_running"}, "contradicts"),
    ],
)
def test_join_is_refused_where_it_cannot_work_by_a_single_call_too(
    options: dict[str, Any], singleton: dict[str, Any], message: str
) -> None:
    """What a declaration, or the start of a worker, would refuse never gets into a message."""
    app = worker_app.make_app("memory://", "redis://", "memory://")
    task = app.task(name="called", shared=False, singleton=Singleton(by=()), **options)(plain)
    call = {"singleton": Singleton(on_conflict="join", **singleton)}

    with pytest.raises(ConfigurationError, match=message):
        task.apply_async(**call)
    app.conf.result_backend, task.ignore_result = "rpc://", False
    with pytest.raises(ConfigurationError, match="rpc://"):
        task.apply_async(singleton=Singleton(on_conflict="join", by="x"))
    app.close()


@pytest.mark.parametrize(
    ("backend", "message"), [("rpc://", "rpc://"), (None, "an app without a result backend")]
)
def test_a_worker_that_cannot_read_results_does_not_start(backend: str | None, message: str) -> None:
    """A joining task whose results only their publisher sees, or nobody, stops the worker with a remedy."""
    app = worker_app.make_app("memory://", "disabled://", "memory://")
    app.conf.result_backend = backend

    with pytest.raises(ConfigurationError, match=message):
        SetUp(SimpleNamespace(app=app))
    app.close()
