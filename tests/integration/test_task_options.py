"""Celery's own task options that touch the same places as ours: each keeps its meaning.

Others are tried where they matter: ``track_started`` and a base class's ``__call__`` in
`test_worker_returns`, ``ignore_result`` in `test_worker_modes`, ``reject_on_worker_lost`` in
`test_worker_crashes`, ``autoretry_for`` in `test_scenario_74...`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery import chord
from celery.utils import uuid

from singleflight import Singleton, Skipped
from singleflight.celery import peek
from tests.integration import options_app
from tests.support.bodylog import overlaps, starts
from tests.support.rig import Rig
from tests.support.servers import missing
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator

CONF = {"worker_deduplicate_successful_tasks": True}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run one worker for all tests of this file; it keeps Celery's own list of successful tasks, too."""
    with Rig(tmp_path_factory.mktemp("options"), conf=CONF) as rig:
        yield rig.start(1, concurrency=4, args=["-I", options_app.__name__])
        assert not rig.endless_keys()


def model(**values: str) -> Any:
    """Return an argument of the tasks that take a model, as publishers have to write it on this Celery."""
    if not options_app.KNOWS_MODELS:
        if celery.VERSION < (5, 5):
            pytest.skip("Celery knows pydantic since 5.5")
        missing("pydantic", f"{sys.executable} -m pip install pydantic")
    order = options_app.Order(**values)
    return order if celery.VERSION >= (5, 7) else order.model_dump()


@pytest.mark.smoke
def test_models_are_arguments_like_others(rig: Rig) -> None:
    """With pydantic=True the body gets its model, and a duplicate is known by one of the model's fields."""
    one, two = model(account="modelled"), model(account="modelled", note="again")
    gate = rig.folder / "modelled"
    task, once = rig.app.tasks["modelled"], rig.app.tasks["modelled-once"]
    how = {"gate": str(gate)}
    first = task.apply_async((one,), how)
    rig.wait_start("modelled")
    skipped = task.apply_async((two,), how)
    waiting, duplicate = once.apply_async((one,), how), once.apply_async((two,), how)
    with pytest.raises(Skipped, match=first.id):
        skipped.get(timeout=30)
    gate.touch()

    assert (waiting.duplicate, duplicate.duplicate, duplicate.id) == (False, True, waiting.id)
    assert first.get(timeout=30) == ["Order", first.id]
    assert waiting.get(timeout=30) == ["Order", waiting.id]


@pytest.mark.smoke
def test_a_request_class_of_the_users_keeps_its_hooks(rig: Rig) -> None:
    """Its hooks are called, and a hard time limit, which both hear of, still frees the key of 30 s."""
    result = rig.send("requesting", "requesting", {"time_limit": 2}, seconds=60)
    rig.wait_start("requesting")
    duplicate = rig.send("requesting", "requesting")

    assert rig.states([result, duplicate]) == ["FAILURE", "REVOKED"]
    hooks = {"accepted", "failure", "timeout"}
    until(
        lambda: {run.key for run in starts(rig.log.runs(), result.id)} == {"requesting", *hooks},
        10,
        "the traces of all hooks",
    )
    until(lambda: not rig.held(result.id), SOON, "the end of the lease")
    after = rig.send("requesting", "requesting")
    assert after.get(timeout=30) == after.id


@pytest.mark.smoke
@pytest.mark.parametrize("place", ["tail", "body", "link", "errback", "by name"])
def test_an_options_journey_ends_at_the_worker(rig: Rig, place: str) -> None:
    """What `.set(singleton=...)` says at the end of a flow is what becomes of its duplicate there."""
    key = f"journey-{place}"
    gate = rig.folder / key
    rig.send("probe", key, gate=str(gate))
    rig.wait_start(key)
    probe, run_id = rig.app.tasks["probe"], uuid()
    last = probe.si(key).set(task_id=run_id, singleton=Singleton(on_conflict="defer"))
    first = probe.si(f"{key}-first")
    match place:
        case "tail":
            (first | last).apply_async()
        case "body":
            chord([first, probe.si(f"{key}-second")], last, app=rig.app).apply_async()
        case "link":
            first.apply_async(link=last)
        case "errback":
            probe.si(f"{key}-first", then="fail").apply_async(link_error=last)
        case "by name":
            options = {"task_id": run_id, "singleton": Singleton(on_conflict="defer")}
            rig.app.send_task("probe", (key,), **options)
    until(lambda: rig.said(f"{run_id} deferred"), 20, "the deferral")
    gate.touch()
    until(lambda: len(rig.runs(key)) == 2, 20, "its own run")

    assert rig.runs(key)[1].run == run_id
    assert not overlaps(rig.runs(key))


def test_celerys_list_of_successful_tasks_is_of_one_mind_with_ours(rig: Rig) -> None:
    """Redelivered before it succeeded, a run runs again; a later copy does not; a deferral is no copy."""
    back = rig.send("late", "requeued", then="first-requeue")
    assert back.get(timeout=30) == back.id
    rig.copy(rig.app.tasks["late"].si("requeued"), back.id)
    until(lambda: rig.said(f"{back.id} dropped"), what="the drop of the copy")
    gate = rig.folder / "successful"
    first = rig.send("late", "successful", gate=str(gate))
    rig.wait_start("successful")
    second = rig.send("late", "successful", {"singleton": Singleton(on_conflict="defer")})
    until(lambda: rig.said(f"{second.id} deferred"), what="the deferral")
    gate.touch()

    assert rig.states([first, second]) == ["SUCCESS", "SUCCESS"]
    assert [run.how for run in rig.runs("requeued")] == ["Reject", "returned"]
    assert [run.run for run in rig.runs("successful")] == [first.id, second.id]


@pytest.mark.parametrize(
    ("task", "ignores", "state"),
    [
        ("probe", True, "PENDING"),
        pytest.param(
            *("quiet", False, "SUCCESS"),
            marks=pytest.mark.skipif(celery.VERSION < (5, 6), reason="Celery heeds this since 5.6"),
        ),
    ],
)
def test_a_deferred_run_keeps_its_callers_ignore_result(
    rig: Rig, task: str, ignores: bool, state: str
) -> None:
    """What a call says against its task's own ignore_result holds, however often it waited."""
    key = f"ignore-{ignores}"
    gate = rig.folder / key
    rig.send(task, key, gate=str(gate))
    rig.wait_start(key)
    asked = rig.send(task, key, {"ignore_result": ignores, "singleton": Singleton(on_conflict="defer")})
    until(lambda: rig.said(f"{asked.id} deferred"), what="the deferral")
    gate.touch()
    until(lambda: rig.final(asked.id), 30, "its end")

    assert asked.state == state


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery has retry_on_worker_lost since 5.7")
def test_a_run_that_its_worker_retries_is_no_duplicate(rig: Rig) -> None:
    """With retry_on_worker_lost the worker publishes a killed run again, and that runs, once."""
    result = rig.send("again", "again", seconds=20)
    (killed,) = rig.wait_start("again")
    os.kill(killed.pid, signal.SIGKILL)
    retried = rig.wait_start("again", 2)
    rig.states([result], timeout=60)

    assert [(run.run, run.attempt) for run in retried] == [(result.id, 0), (result.id, 1)]
    assert not overlaps(retried)


@pytest.mark.smoke
def test_whoever_publishes_can_ask_whether_a_task_runs(rig: Rig) -> None:
    """`peek` finds the run of a worker by the call's arguments, with where it is, and its end."""
    task, gate = rig.app.tasks["requesting"], rig.folder / "peeked"
    assert not peek(task, "peeked")
    result = rig.send("requesting", "peeked", gate=str(gate))
    rig.wait_start("peeked")

    status = peek(task, "peeked")
    assert (status.running, status.run_id) == (True, result.id)
    assert status.holder is not None
    assert status.holder.task == "requesting"
    assert not peek(task, "another")

    gate.touch()
    until(lambda: not peek(task, "peeked"), 10, "the end of the run")
    assert peek(task, "peeked").outcome == "finished"
