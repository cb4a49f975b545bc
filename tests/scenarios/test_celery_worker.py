"""Scenarios 1, 4, 7, 17 and 67 to 84: troubles of users with locks around Celery tasks, on real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import celery
import pytest

from singleflight import Singleton
from tests.integration import worker_app
from tests.support.bodylog import of_key, overlaps, starts
from tests.support.nodes import import_path
from tests.support.rig import Rig, remembered
from tests.support.sweep import SWEEP
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = Singleton(ttl=30)
CONF = {"broker_transport_options": {"visibility_timeout": 5, **SWEEP}}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run three workers for all scenarios; the broker delivers again what is not acknowledged after 5 s."""
    with Rig(tmp_path_factory.mktemp("scenarios"), conf=CONF) as rig:
        yield rig.start(3, concurrency=3)
        assert not rig.endless_keys()


def publish_from_another_process(rig: Rig, *calls: tuple[str, list[object], dict[str, object]]) -> list[str]:
    """Publish calls from a process of their own; return their run ids."""
    script = (
        "import json, sys; from tests.integration.worker_app import app\n"
        "for name, args, kwargs in json.loads(sys.argv[1]):\n"
        "    print(app.tasks[name].apply_async(args, kwargs).id)"
    )
    env = {
        **os.environ,
        **import_path(rig.folder),
        "CELERY_BROKER_URL": rig.broker.url,
        worker_app.STORE: rig.store.url,
    }
    run = subprocess.run(
        [sys.executable, "-c", script, json.dumps(calls)],
        env=env, cwd=rig.folder, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return run.stdout.split()


def test_scenario_01_positional_and_keyword_calls_are_one_key(rig: Rig) -> None:
    """f(1, 2), f(1, b=2), f(b=2, a=1) and f(1) with its default are duplicates of each other."""
    pair = rig.app.tasks["pair"]
    first = pair.apply_async((1, 2), {"seconds": 4})
    rig.wait_start("pair")
    calls = [((1, 2), {}), ((1,), {"b": 2}), ((), {"b": 2, "a": 1}), ((1,), {})]
    others = [pair.apply_async(args, kwargs) for args, kwargs in calls]

    assert rig.states([first, *others]) == ["SUCCESS", *["REVOKED"] * 4]
    assert len(rig.runs("pair")) == 1


def test_scenario_04_the_key_survives_the_serializer(rig: Rig) -> None:
    """Arguments that JSON changes still have one key, and the lease is gone after the run."""
    everything = rig.app.tasks["everything"]
    for count in (1, 2):
        result = everything.delay({0: "a"}, (1, 2), ["x"])
        assert result.get(timeout=30) == result.id
        assert len(rig.runs("everything")) == count
        until(lambda: not rig.held(result.id), SOON, "the release")  # noqa: B023 - asked at once
    keys = [key for key in rig.records() if ":everything:" in key]
    assert len(keys) == 1


def test_scenario_07_a_bound_task_has_one_key_in_every_process(rig: Rig) -> None:
    """The same call published by two processes is one key, without an address or a script's name in it."""
    ids = [
        run
        for _ in range(2)
        for run in publish_from_another_process(rig, ("probe", ["bound"], {"seconds": 0.1}))
    ]
    states = rig.states([rig.app.AsyncResult(run) for run in ids])

    assert set(states) <= {"SUCCESS", "REVOKED"}
    (key,) = [key for key, record in rig.records().items() if remembered(record, ids[0])]
    assert "0x" not in key
    assert "__main__" not in key
    assert remembered(rig.records()[key], ids[1]) or states[1] == "REVOKED"


SCRIPT = """
import warnings
from celery import Celery
from singleflight.celery import install
from singleflight.tasks.delivery import Delivery

app = Celery(broker="memory://")
install(app, "memory://")

@app.task(name="script.named", singleton=True)
def named(): pass

@app.task(singleton=True)
def unnamed(): pass

def keys():
    warned = []
    for task in (named, unnamed):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            task.name
        warned.append(len(caught))
    runtime, delivery = app.singleflight, Delivery("run", 0, "token", (), {})
    for task, count in zip((named, unnamed), warned):
        task = app.tasks[task.name]
        print(runtime.request(task, runtime.policy(task, delivery), delivery).key, count)
"""


def test_scenario_17_an_explicit_name_has_one_key_in_script_and_worker(tmp_path: Path) -> None:
    """Started as a script, a named task has the worker's key; one named after __main__ has not, and warns."""
    (tmp_path / "script.py").write_text(f"{SCRIPT}\nif __name__ == '__main__': keys()\n")

    def run(*arguments: str) -> list[list[str]]:
        command = [sys.executable, "-W", "ignore", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        return [line.split() for line in done.stdout.splitlines()]

    as_script, as_module = run("script.py"), run("-c", "import script; script.keys()")

    assert as_script[0] == as_module[0]
    assert as_script[1][0] != as_module[1][0]
    assert (as_script[1][1], as_module[1][1]) == ("1", "0")
    assert "__main__" not in as_script[1][0]


def test_scenario_67_copies_after_the_visibility_timeout_never_start(rig: Rig) -> None:
    """A run of 12 s is delivered again after 5 s: one start, and the id's result is the first run's value."""
    result = rig.send("late", "visibility", seconds=12)

    until(lambda: rig.sweep() or result.ready(), 40, "the end of the run", every=0.5)
    assert rig.said(f"{result.id} deferred")
    until(lambda: rig.said(f"{result.id} dropped"), what="the drop of a copy")
    assert len(rig.runs("visibility")) == 1
    assert (result.state, result.result) == ("SUCCESS", result.id)


def test_scenario_70_a_hard_time_limit_frees_the_key(rig: Rig) -> None:
    """Killed by time_limit=2 with a ttl of 30 s, the run is a FAILURE and the next publish runs at once."""
    result = rig.send("probe", "limit", {"time_limit": 2, "singleton": LONG}, seconds=60)
    assert rig.states([result]) == ["FAILURE"]
    until(lambda: not rig.held(result.id), SOON, "the end of the lease")

    after = rig.send("probe", "limit", {"singleton": LONG})
    assert after.get(timeout=30) == after.id


def test_scenario_71_a_run_revoked_while_it_waits_blocks_nobody(rig: Rig) -> None:
    """With no free worker a run is revoked and another one published: only the second one starts."""
    worker = rig.worker(concurrency=1, args=["-Q", "narrow"])
    gate = rig.folder / "narrow-gate"
    blocker = rig.send("plain", "blocker", {"queue": "narrow"}, gate=str(gate))
    rig.wait_start("blocker")
    revoked = rig.send("probe", "narrow", {"queue": "narrow", "singleton": LONG})
    until(lambda: revoked.id in worker.logs(), what="the receipt of the run to be revoked")
    rig.app.control.revoke(revoked.id)
    second = rig.send("probe", "narrow", {"queue": "narrow", "singleton": LONG})
    until(lambda: f"Tasks flagged as revoked: {revoked.id}" in worker.logs(), what="the revocation")
    gate.touch()

    assert rig.states([blocker, revoked, second]) == ["SUCCESS", "REVOKED", "SUCCESS"]
    assert [run.run for run in rig.runs("narrow")] == [second.id]


def test_scenario_71_a_run_revoked_while_it_is_deferred_frees_the_waiting_slot(rig: Rig) -> None:
    """Revoking the one that waits under "coalesce" lets the next duplicate wait in its place."""
    options = {"singleton": Singleton(on_conflict="coalesce", ttl=30)}
    gate = rig.folder / "slot-gate"
    first = rig.send("probe", "slot", options, gate=str(gate))
    rig.wait_start("slot")
    waiting = rig.send("probe", "slot", options)
    until(lambda: rig.said(f"{waiting.id} deferred"), what="the wait of the second run")
    rig.app.control.revoke(waiting.id)
    assert rig.states([waiting]) == ["REVOKED"]
    until(lambda: rig.record_of(first.id).slot != waiting.id, SOON, "the end of the slot")
    third = rig.send("probe", "slot", options)
    until(lambda: rig.said(f"{third.id} deferred"), what="the wait of the third run")
    gate.touch()

    assert third.get(timeout=30) == third.id
    assert [run.run for run in rig.runs("slot")] == [first.id, third.id]


def test_scenario_74_retries_go_through_among_other_publishes(rig: Rig) -> None:
    """A run that fails twice retries under its own id while others are published; then its key is free."""
    result = rig.send("autoretry", "retry", fails=2, seconds=0.2)
    others = []
    rig.wait_start("retry")
    until(
        lambda: others.append(rig.send("autoretry", "retry", fails=0, seconds=0.2)) or result.ready(),
        30, "the last retry", every=0.3,
    )  # fmt: skip

    assert result.get(timeout=30) == result.id
    rig.states(others)
    assert [run.attempt for run in starts(rig.log.runs(), result.id)] == [0, 1, 2]
    assert not overlaps(rig.runs("retry"))
    assert not rig.held(result.id)

    failing = rig.send("autoretry", "retry-in-vain", fails=9)
    assert rig.states([failing]) == ["FAILURE"]
    assert [run.attempt for run in rig.runs("retry-in-vain")] == [0, 1, 2, 3]
    assert rig.send("autoretry", "retry-in-vain", fails=0).get(timeout=30)


@pytest.mark.parametrize("key", ["ordinary", "unpicklable", "exit"])
def test_scenario_76_a_failure_leaves_the_key_free(rig: Rig, key: str) -> None:
    """After an error, an error that no pickle carries, or sys.exit(), the next publish runs."""
    key = f"{key}-failure"
    then = "exit" if key.startswith("exit") else "fail"
    for count in (1, 2):
        result = rig.send("probe", key, {"singleton": LONG}, then=then)
        rig.wait_start(key, count)
        # Before 5.7, Celery leaves the result of a body that exits pending for ever.
        if then == "fail" or celery.VERSION >= (5, 7):
            assert rig.states([result]) == ["FAILURE"]
        until(lambda: not rig.held(result.id), SOON, "the release")  # noqa: B023 - asked at once
        assert len(rig.runs(key)) == count


def test_scenario_79_what_finished_during_a_warm_shutdown_does_not_run_again(rig: Rig) -> None:
    """SIGTERM during a late-acked run: it finishes, and its copy does not start after the restart."""
    queue = {"queue": "restarted"}
    worker = rig.worker(concurrency=1, args=["-Q", "restarted"])
    gate = rig.folder / "restarted-gate"
    result = rig.send("late", "restarted", queue, gate=str(gate))
    rig.wait_start("restarted")
    worker.kill(signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.logs(), what="the warm shutdown")
    gate.touch()
    assert worker.child.wait(20) == 0
    worker.restart()
    # Celery may or may not have acknowledged it in time; this is the copy that it left behind if not.
    rig.copy(rig.app.tasks["late"].si("restarted").set(**queue), result.id)

    until(lambda: f"{result.id} dropped" in worker.logs(), what="the drop of the copy")
    assert len(rig.runs("restarted")) == 1
    assert result.get(timeout=30) == result.id


def test_scenario_81_direct_calls_take_no_lease(rig: Rig) -> None:
    """f(), f.run() and f.apply() just run, here and inside another task, and a publish runs afterwards."""
    before = set(rig.records())
    probe = rig.app.tasks["probe"]
    os.environ["BODY_LOG"] = str(rig.log.path)
    probe("direct")
    probe.run("direct")
    assert probe.apply(("direct",)).get()
    inside = [rig.send("plain", "direct", then=how) for how in ("call-probe", "apply-probe")]
    assert rig.states(inside) == ["SUCCESS"] * 2
    assert set(rig.records()) == before

    result = probe.delay("direct")
    assert result.get(timeout=30) == result.id
    assert len(rig.runs("direct")) == 9
    assert set(rig.records()) - before


def test_scenario_84_a_run_that_kills_its_process_each_time_ends_at_last(rig: Rig) -> None:
    """It is rejected after five losses on one worker, visibly, while other keys are served."""
    worker = rig.worker(concurrency=2, args=["-Q", "poison"])
    poison = rig.send("late", "poison", {"queue": "poison", "singleton": Singleton(ttl=1)}, then="die")
    others, began = [], time.monotonic()
    while not poison.ready() and time.monotonic() - began < 60:
        others.append(rig.send("late", f"healthy-{len(others)}", {"queue": "poison"}))
        assert others[-1].get(timeout=15) == others[-1].id
        time.sleep(0.5)

    assert poison.state == "FAILURE"
    # The pool may notice a death later than the broker delivers again: such copies are not counted.
    assert 5 <= len(rig.runs("poison")) <= 10
    assert "lost its pool process, time 5 of 5" in worker.logs()
    assert all(len(of_key(rig.log.runs(), f"healthy-{n}")) == 1 for n in range(len(others)))
    assert not overlaps(rig.runs("poison"))
