"""Processes that die at every moment of a run: what comes back, what does not, and when the key is free."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from celery import chord

from singleflight import Singleton
from tests.integration.worker_app import TTL
from tests.support.bodylog import overlaps, starts
from tests.support.rig import Rig
from tests.support.sweep import SWEEP
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.result import AsyncResult

    from tests.support.bodylog import Run

VISIBILITY = 5.0
REDELIVERY = {"visibility_timeout": VISIBILITY, **SWEEP}
LONG = {"singleton": Singleton(ttl=60)}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers of four processes for all tests of this file; messages come back after five seconds."""
    conf = {"broker_transport_options": REDELIVERY, "worker_send_task_events": True}
    with Rig(tmp_path_factory.mktemp("crashes"), conf=conf) as rig:
        yield rig.start(2, concurrency=4)
        assert not rig.endless_keys()


def test_after_a_killed_child_the_next_run_starts_within_the_ttl(rig: Rig) -> None:
    """SIGKILL of the pool child frees the key after at most one ttl, although nobody could release."""
    killed = rig.send("probe", "killed", seconds=30)
    (run,) = rig.wait_start("killed")
    os.kill(run.pid, signal.SIGKILL)
    after = rig.send("probe", "killed", {"singleton": Singleton(on_conflict="defer")})
    died = time.monotonic()

    assert after.get(timeout=30) == after.id
    (start,) = starts(rig.log.runs(), after.id)
    assert start.started - died < TTL + SOON
    assert rig.states([killed]) == ["FAILURE"]


def test_the_parent_frees_the_key_of_a_killed_child_long_before_a_long_ttl(rig: Rig) -> None:
    """The pool notices a dead child within five seconds, and the worker releases its lease of 60 s then."""
    killed = rig.send("probe", "long", LONG, seconds=30)
    (run,) = rig.wait_start("long")
    os.kill(run.pid, signal.SIGKILL)

    assert rig.states([killed]) == ["FAILURE"]
    until(lambda: not rig.held(killed.id), SOON, "the parent's release")
    after = rig.send("probe", "long", LONG)
    assert after.get(timeout=30) == after.id


def test_a_run_whose_child_was_killed_comes_back_and_finishes(rig: Rig) -> None:
    """With acks_late and reject_on_worker_lost the same run starts again and its result is stored."""
    result = rig.send("late", "back", seconds=0.2, then="first-die")

    assert result.get(timeout=30) == result.id
    runs = rig.runs("back")
    assert [(run.run, run.how) for run in runs] == [(result.id, None), (result.id, "returned")]
    assert not overlaps(runs)


def test_a_killed_run_comes_back_although_another_took_the_key(rig: Rig) -> None:
    """A returning run meets another one on its key and waits: it is never skipped as a duplicate."""
    killed = rig.send("late", "taken", {"singleton": Singleton(ttl=1)}, seconds=30, then="first-die")
    (run,) = rig.wait_start("taken")
    os.kill(run.pid, signal.SIGSTOP)  # its lease ends, and nobody notices
    until(lambda: not rig.held(killed.id), SOON, "the end of the stopped run's lease")
    other = rig.send("late", "taken", seconds=7)
    rig.wait_start("taken", 2)
    os.kill(run.pid, signal.SIGKILL)
    # The first run works for 30 s: shorten what it has to do when it is back.
    until(lambda: rig.said(f"{killed.id} deferred"), what="its deferral")

    assert other.get(timeout=30) == other.id
    _, second, third = rig.wait_start("taken", 3)
    assert (second.run, third.run) == (other.id, killed.id)
    assert third.started > second.last_seen
    os.kill(third.pid, signal.SIGKILL)


def test_a_copy_of_a_finished_run_never_starts_and_leaves_its_flow_alone(rig: Rig) -> None:
    """The same message again is acknowledged and no more: result, chain and chord stay as they were."""
    task, plain = rig.app.tasks["tracked"], rig.app.tasks["plain"]
    chain = (task.si("copy") | plain.si("copy-next")).apply_async()
    chord = chord_of(rig, ["copy-member-1", "copy-member-2"], "copy-body")
    assert chain.get(timeout=30) == chain.id
    assert chord.get(timeout=30) == chord.id
    member = starts_of(rig, "copy-member-1")[0].run

    copies = [
        (chain.parent.id, task.si("copy").set(link=plain.si("copy-next"))),
        (member, task.si("copy-member-1").set(group_id=chord.parent.id, chord=plain.si("copy-body"))),
    ]
    for run, copy in copies:
        rig.copy(copy, run)
        until(lambda run=run: rig.said(f"{run} dropped"), what="the drop of a copy")

    for key in ("copy", "copy-next", "copy-member-1", "copy-body"):
        assert len(rig.runs(key)) == 1, key
    assert rig.app.AsyncResult(chain.parent.id).state == "SUCCESS"
    assert rig.app.AsyncResult(member).state == "SUCCESS"


@pytest.mark.parametrize("strike", ["kill", "term"])
def test_a_run_killed_before_its_result_is_stored_runs_again(rig: Rig, strike: str) -> None:
    """Until the result and the callbacks are out, a run has not ended: its copy must not be dropped."""
    key = f"stored-{strike}"
    result = rig.send("late", key, then=f"strike-{strike}")

    assert result.get(timeout=40) == "struck"
    assert [run.run for run in rig.runs(key)] == [result.id, result.id]


def chord_of(rig: Rig, keys: list[str], body: str) -> AsyncResult:
    """Publish a chord of tracked tasks with a plain body."""
    return chord([rig.app.tasks["tracked"].si(key) for key in keys], app=rig.app)(
        rig.app.tasks["plain"].si(body)
    )


def starts_of(rig: Rig, key: str) -> list[Run]:
    """Return the executions of a key, of which there must be some."""
    return rig.wait_start(key)


def test_a_run_whose_worker_was_killed_comes_back_on_another(rig: Rig) -> None:
    """SIGKILL of a whole worker: the broker delivers the message again, and the run is no duplicate."""
    queue = {"queue": "doomed", "singleton": Singleton(ttl=1)}
    doomed = rig.worker(concurrency=1, args=["-Q", "doomed"])
    result = rig.send("late", "worker", queue, gate=str(rig.folder / "worker-gate"))
    rig.wait_start("worker")
    doomed.child.kill()
    (rig.folder / "worker-gate").touch()
    rig.worker(concurrency=1, args=["-Q", "doomed"])
    until(lambda: rig.sweep() or result.ready(), 60, "the end of the run", every=0.5)

    assert result.get(timeout=30) == result.id
    runs = rig.runs("worker")
    assert [(run.run, run.how) for run in runs] == [(result.id, None), (result.id, "returned")]


def test_a_hard_time_limit_frees_the_key_at_once(rig: Rig) -> None:
    """A child killed by its hard time limit leaves no lease: the worker shortens it to a second."""
    result = rig.send("probe", "hard", {**LONG, "time_limit": 1}, seconds=30)
    assert rig.states([result]) == ["FAILURE"]
    until(lambda: not rig.held(result.id), SOON, "the end of the lease")

    after = rig.send("probe", "hard", LONG)
    assert after.get(timeout=30) == after.id
    assert not overlaps(rig.runs("hard"))


def test_a_soft_time_limit_frees_the_key_at_once(rig: Rig) -> None:
    """A soft time limit ends the body as any exception does."""
    result = rig.send("probe", "soft", {**LONG, "soft_time_limit": 1}, seconds=30)
    assert rig.states([result]) == ["FAILURE"]
    until(lambda: not rig.held(result.id), SOON, "the end of the lease")

    after = rig.send("probe", "soft", LONG)
    assert after.get(timeout=30) == after.id


def test_a_soft_limit_that_strikes_inside_the_release_loses_nothing(rig: Rig) -> None:
    """The release is noted before it goes out, so the keeper finishes it when an exception cuts it short."""
    gate = rig.folder / "release-gate"
    result = rig.send("probe", "release", LONG, gate=str(gate))
    (run,) = rig.wait_start("release")
    rig.store.pause()
    try:
        gate.touch()
        assert rig.states([result]) == ["SUCCESS"]
        os.kill(run.pid, signal.SIGUSR1)  # as billiard does when a soft limit is over
        until(lambda: rig.said("SoftTimeLimitExceeded"), what="the strike")
    finally:
        rig.store.resume()

    until(lambda: not rig.held(result.id), SOON, "the release")
    assert rig.final(result.id)


def test_a_soft_limit_that_strikes_while_the_result_is_stored_leaves_no_lease(rig: Rig) -> None:
    """Struck after the body, before the result: the key is free all the same."""
    result = rig.send("probe", "storing", LONG, then="strike-usr1")
    rig.wait_start("storing")
    until((rig.folder / "struck-storing").exists, what="the strike")

    until(lambda: not rig.held(result.id), SOON, "the release")


@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_a_terminated_run_frees_the_key(rig: Rig, name: str) -> None:
    """revoke(terminate=True) ends the body, the run is REVOKED and no lease is left."""
    key = f"terminate-{name}"
    result = rig.send("probe", key, LONG, seconds=30)
    rig.wait_start(key)
    rig.app.control.revoke(result.id, terminate=True, signal=f"SIG{name}")
    assert rig.states([result]) == ["REVOKED"]
    until(lambda: not rig.held(result.id), SOON, "the end of the lease")

    after = rig.send("probe", key, LONG)
    assert after.get(timeout=30) == after.id
    assert not overlaps(rig.runs(key))


def test_a_terminated_run_keeps_its_lease_while_it_cleans_up(rig: Rig) -> None:
    """A body that takes its time in `finally` after SIGTERM is not overlapped by the run that waits."""
    gate, key = rig.folder / "cleanup-gate", "cleanup"
    terminated = rig.send("probe", key, seconds=60, cleanup=str(gate))
    rig.wait_start(key)
    waiting = rig.send("probe", key, {"singleton": Singleton(on_conflict="defer")})
    until(lambda: deferrals(rig, waiting.id), what="its first deferral")
    rig.app.control.revoke(terminated.id, terminate=True)
    assert rig.states([terminated]) == ["REVOKED"]
    seen = deferrals(rig, waiting.id)
    # Each is a second at least, and a lease that was cut short would have one second left.
    until(lambda: deferrals(rig, waiting.id) >= seen + 3 or rig.runs(key)[1:], 40, "more deferrals")
    kept = rig.held(terminated.id)
    gate.touch()

    assert waiting.get(timeout=30) == waiting.id
    assert kept
    assert [run.run for run in rig.runs(key)] == [terminated.id, waiting.id]
    assert not overlaps(rig.runs(key))


def deferrals(rig: Rig, run: str) -> int:
    """Return how often workers have deferred a run."""
    return sum(worker.logs().count(f"{run} deferred") for worker in rig.workers)


def test_runs_that_are_revoked_or_expire_before_they_start_take_no_lease(rig: Rig) -> None:
    """A message that never reaches its body leaves no record in the store."""
    revoked = rig.send("probe", "never-revoked", {"countdown": 2})
    expired = rig.send("probe", "never-expired", {"countdown": 2, "expires": 1})
    rig.app.control.revoke(revoked.id)

    assert rig.states([revoked, expired]) == ["REVOKED", "REVOKED"]
    assert not rig.runs("never-revoked") + rig.runs("never-expired")
    assert not rig.record_of(revoked.id).runs
    assert not rig.record_of(expired.id).runs
