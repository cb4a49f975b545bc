"""A new call under an id that was used before runs; a copy of an old one does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain, chord, group

from singleflight import Singleton
from tests.integration import canvas_app, reused_app
from tests.support.bodylog import overlaps
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bodylog import Run


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run a worker for all tests of this file."""
    with Rig(tmp_path_factory.mktemp("reused")) as rig:
        args = ["-I", f"{reused_app.__name__},{canvas_app.__name__}"]
        yield rig.start(1, concurrency=4, args=args)
        assert not rig.endless_keys()


def wait_runs(rig: Rig, key: str, count: int) -> list[Run]:
    """Wait until so many bodies of a key are over, and nothing of it is left to do."""
    until(lambda: len(rig.runs(key)) >= count and rig.broker_is_empty(), 30, f"{count} runs of {key}")
    return rig.runs(key)


@pytest.mark.smoke
def test_a_call_under_an_id_that_was_used_before_runs(rig: Rig) -> None:
    """Whoever names calls after what they are for calls again once the last call is over."""
    for count in range(1, 4):
        rig.send("late", "bob", {"task_id": "sync-bob"})
        wait_runs(rig, "bob", count)
    rig.app.send_task("late", ("bob",), task_id="sync-bob")
    runs = wait_runs(rig, "bob", 4)

    assert [run.run for run in runs] == ["sync-bob"] * 4
    assert not overlaps(runs)


def test_two_calls_under_one_id_at_once_are_two_calls(rig: Rig) -> None:
    """While the first one works the second one is a duplicate, and leaves the result to the first."""
    gate = rig.folder / "twice-gate"
    first = rig.send("late", "twice", {"task_id": "twice-id"}, gate=str(gate))
    rig.wait_start("twice")
    rig.send("late", "twice", {"task_id": "twice-id"})
    until(lambda: rig.said("run twice-id skipped"), what="the skip")
    state = first.state
    gate.touch()

    assert state != "REVOKED"
    assert first.get(timeout=10) == "twice-id"
    assert len(wait_runs(rig, "twice", 1)) == 1


@pytest.mark.parametrize("how", ["apply_async", "signature"])
def test_a_task_that_publishes_itself_under_its_own_id_goes_on(rig: Rig, how: str) -> None:
    """Each round is a new call, although id and headers are those of the round before."""
    key = f"self-{how}"
    rig.app.send_task("resending", (key, 4, how), task_id=f"{key}-id")

    assert len(wait_runs(rig, key, 4)) == 4


def test_a_parents_redelivery_publishes_a_copy_and_its_retry_a_new_call(rig: Rig) -> None:
    """A parent that dies after it has published its child, and is delivered again, starts it once."""
    rig.app.send_task("parent", ("crash", "crashs-child", "first-die"))
    wait_runs(rig, "crash", 2)
    rig.app.send_task("parent", ("retry", "retrys-child", "retry-later"))
    wait_runs(rig, "retry", 3)

    assert len(wait_runs(rig, "crashs-child", 1)) == 1
    assert len(wait_runs(rig, "retrys-child", 3)) == 3


@pytest.mark.parametrize("mode", ["skip", "defer", "join"])
def test_a_frozen_chain_that_is_applied_again_runs_again_to_its_end(rig: Rig, mode: str) -> None:
    """Its signatures have the same ids each time, and the chain goes on behind each of them."""
    task, key = rig.app.tasks[f"canvas.{mode}"], f"frozen-{mode}"
    flow = chain(task.si(key), rig.app.tasks["canvas.step"].si(f"{key}-end"))
    flow.freeze()
    for count in range(1, 4):
        flow.apply_async()
        wait_runs(rig, f"{key}-end", count)

    assert len(rig.runs(key)) == 3


def test_one_frozen_signature_twice_in_a_chain_runs_twice(rig: Rig) -> None:
    """The same id stands at two places of one flow, and the flow comes to its end."""
    same = rig.app.tasks["canvas.defer"].si("place")
    same.freeze()
    end = rig.app.tasks["canvas.step"].si("place-end")
    (same.clone() | same.clone() | end).apply_async()

    wait_runs(rig, "place-end", 1)
    assert len(rig.runs("place")) == 2


def test_a_frozen_chord_that_is_applied_again_runs_its_body_again(rig: Rig) -> None:
    """Header and body are singletons; each application runs all of them."""
    late = rig.app.tasks["late"]
    flow = chord(group(late.si("head-1"), late.si("head-2")), late.si("body"))
    flow.freeze()
    for count in range(1, 4):
        flow.apply_async()
        wait_runs(rig, "body", count)

    assert [len(rig.runs(key)) for key in ("head-1", "head-2", "body")] == [3, 3, 3]


def test_deferred_and_retried_calls_under_one_id_stay_calls_of_their_own(rig: Rig) -> None:
    """Three calls of one id wait for each other and are retried: each runs, each attempt once."""
    options: dict[str, Any] = {"task_id": "busy-id", "singleton": Singleton(on_conflict="defer")}
    for _ in range(3):
        rig.send("late", "busy", options, seconds=0.3, then="retry")
    runs = wait_runs(rig, "busy", 9)

    assert sorted(run.attempt for run in runs) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert not overlaps(runs)


def test_a_message_without_our_mark_is_known_by_its_id(rig: Rig) -> None:
    """A producer without us that sends one message twice sends a copy, as ever."""
    producer = Celery(broker=rig.broker_url, set_as_current=False)
    for _ in range(2):
        producer.send_task("late", ("foreign",), task_id="foreign-id")
        until(rig.broker_is_empty, what="the end of the message")
        wait_runs(rig, "foreign", 1)

    until(lambda: rig.said("run foreign-id dropped"), what="the copy")
    producer.close()
    assert len(rig.runs("foreign")) == 1
