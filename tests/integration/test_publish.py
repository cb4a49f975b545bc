"""Publishing a ``waiting_...`` task: what a duplicate gets, and a slot that never outlives its life."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, group
from celery.exceptions import TaskRevokedError
from celery.utils import uuid
from kombu.exceptions import OperationalError

from singleflight import ConfigurationError, Conflict, Event, Singleton
from singleflight.celery.results import SingletonResult
from singleflight.events import Kind
from singleflight.lease import Reason
from singleflight.stores.base import Record
from tests.integration import publish_app, worker_app
from tests.support.bodylog import overlaps
from tests.support.child import Child
from tests.support.commands import celery_command, import_path
from tests.support.rig import Rig, remembered
from tests.support.servers import free_port
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDLE = "idle"
"""A queue that no worker consumes: what is published there waits."""

SLACK = 3.0
"""Seconds that a busy machine may add to `store_timeout`, besides what it adds to calls that do not wait."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers for all tests of this file."""
    with Rig(tmp_path_factory.mktemp("publish")) as rig:
        args = ["-I", "tests.integration.publish_app"]
        yield rig.start(2, concurrency=4, args=args, env={publish_app.SIDE: "worker"})
        assert not rig.endless_keys()


def publish(rig: Rig, name: str, key: str, options: dict[str, Any] | None = None, **how: Any) -> Any:
    """Publish a task with this key and return what the publisher gets."""
    return rig.send(name, key, options, **how)


def record(rig: Rig, run: str) -> Record:
    """Return the record in which a run waits or has started; an empty one if there is none."""
    return next((r for r in rig.records().values() if r.slot == run or remembered(r, run)), Record())


def waits(rig: Rig, run: str) -> bool:
    """Whether a run has the waiting slot of its key, by the store's word."""
    found = record(rig, run)
    return found.slot == run and found.slot_expires_ms > time.time() * 1000


@pytest.mark.smoke
def test_a_duplicate_of_a_waiting_run_is_not_sent(rig: Rig) -> None:
    """Its publisher gets the waiting run's result, and is told so."""
    first = publish(rig, "once", "waiting", {"queue": IDLE})
    second = publish(rig, "once", "waiting", {"queue": IDLE})

    assert (first.duplicate, first.busy) == (False, None)
    assert isinstance(second, SingletonResult)
    assert (second.duplicate, second.id, second.busy.reason) == (True, first.id, Reason.QUEUED)
    assert second == first


@pytest.mark.smoke
def test_a_duplicate_of_a_running_run_gets_its_result(rig: Rig) -> None:
    """A second `delay` while the first works returns a handle on the first."""
    gate = rig.folder / "running-gate"
    first = publish(rig, "once", "running", gate=str(gate))
    rig.wait_start("running")
    second = publish(rig, "once", "running")
    gate.touch()

    assert second.duplicate
    assert second.busy.reason is Reason.RUNNING
    assert second.busy.holder.task == "once"
    assert second.get(timeout=30) == first.id
    assert len(rig.runs("running")) == 1


@pytest.mark.smoke
def test_who_has_read_a_result_publishes_at_once(rig: Rig) -> None:
    """A run whose result is out is in nobody's way, although its lease is given back a moment later."""
    for count in range(1, 21):
        result = publish(rig, "once", "again")
        assert not result.duplicate
        assert result.get(timeout=30) == result.id
        assert len(rig.runs("again")) == count


def test_a_refused_publisher_gets_a_conflict(rig: Rig) -> None:
    """`on_conflict="raise"` raises where the duplicate is published, whether the other waits or runs."""
    publish(rig, "strict", "strict-waits", {"queue": IDLE})
    gate = rig.folder / "strict-gate"
    running = publish(rig, "strict", "strict-runs", gate=str(gate))
    rig.wait_start("strict-runs")

    with pytest.raises(Conflict, match="queued"):
        publish(rig, "strict", "strict-waits")
    with pytest.raises(Conflict, match=f"running: run {running.id}"):
        publish(rig, "strict", "strict-runs")
    gate.touch()


@pytest.mark.smoke
def test_one_waits_while_one_runs(rig: Rig) -> None:
    """`waiting_and_running`: what changes while a run works is seen to by one more run, not by five."""
    gate = rig.folder / "next-gate"
    first = publish(rig, "next", "next", gate=str(gate))
    rig.wait_start("next")
    others = [publish(rig, "next", "next") for _ in range(5)]
    gate.touch()

    assert [other.duplicate for other in others] == [False, True, True, True, True]
    assert {other.id for other in others} == {others[0].id}
    assert rig.states([first, others[0]]) == ["SUCCESS", "SUCCESS"]
    runs = rig.runs("next")
    assert [run.run for run in runs] == [first.id, others[0].id]
    assert not overlaps(runs)


def test_a_failed_publish_leaves_nothing(rig: Rig) -> None:
    """If the broker does not take the message, the next publisher is not told of a duplicate."""
    app = worker_app.make_app(f"redis://127.0.0.1:{free_port()}/0", rig.broker.url, rig.store_url)
    with pytest.raises(OperationalError):
        app.tasks["once"].apply_async(("unsent",), retry=False)
    app.close()
    result = publish(rig, "once", "unsent")

    assert not result.duplicate
    assert result.get(timeout=30) == result.id


def test_a_revoked_run_waits_no_longer(rig: Rig) -> None:
    """Revoked while it waits for its moment in a worker, it is in nobody's way."""
    first = publish(rig, "once", "revoked", {"countdown": 3})
    until(lambda: waits(rig, first.id), what="the slot")
    until(lambda: rig.queued() == 0, what="the receipt")
    first.revoke()
    until(lambda: first.state == "REVOKED", what="the revocation")
    second = publish(rig, "once", "revoked")

    assert not second.duplicate
    assert second.get(timeout=30) == second.id
    until(lambda: not waits(rig, first.id), what="the end of its slot")
    assert [run.run for run in rig.runs("revoked")] == [second.id]


def test_a_run_revoked_long_before_its_moment_waits_no_longer(rig: Rig) -> None:
    """A worker that has received it frees its slot as soon as it hears of the revocation."""
    first = publish(rig, "once", "revoked-early", {"countdown": 60})
    until(lambda: waits(rig, first.id), what="the slot")
    until(lambda: rig.queued() == 0, what="the receipt")
    rig.app.control.revoke(first.id)
    until(lambda: not waits(rig, first.id), 10, "the end of its slot")
    second = publish(rig, "once", "revoked-early")

    assert not second.duplicate
    assert second.get(timeout=30) == second.id


def test_who_revokes_a_run_that_no_worker_has_can_call_again(rig: Rig) -> None:
    """The publisher's own revocation frees the slot, whatever becomes of the message."""
    first = publish(rig, "once", "revoked-idle", {"queue": IDLE})
    first.revoke()
    second = publish(rig, "once", "revoked-idle")

    assert not second.duplicate
    assert second.get(timeout=30) == second.id


def test_a_run_revoked_while_deferred_waits_no_longer(rig: Rig) -> None:
    """The worker that throws its message away frees its slot."""
    gate = rig.folder / "revoked-gate"
    publish(rig, "next", "revoked-deferred", gate=str(gate))
    rig.wait_start("revoked-deferred")
    second = publish(rig, "next", "revoked-deferred")
    until(lambda: rig.said(f"{second.id} deferred"), what="a deferral")
    second.revoke()
    until(lambda: second.state == "REVOKED", 30, "the revocation")
    until(lambda: not waits(rig, second.id), 30, "the end of its slot")
    third = publish(rig, "next", "revoked-deferred")
    gate.touch()

    assert not third.duplicate
    assert third.get(timeout=30) == third.id


def test_an_expired_run_waits_no_longer(rig: Rig) -> None:
    """`expires` ends a place in the queue, with and without a worker."""
    received = publish(rig, "once", "expired", {"expires": 1.0, "countdown": 2})
    idle = publish(
        rig, "once", "expired-idle", {"expires": datetime.now(UTC) + timedelta(seconds=1), "queue": IDLE}
    )
    with pytest.raises(TaskRevokedError):
        received.get(timeout=15)
    until(lambda: not waits(rig, received.id) and not waits(rig, idle.id), what="the end of both slots")

    assert not publish(rig, "once", "expired").duplicate
    assert not publish(rig, "once", "expired-idle").duplicate


@pytest.mark.smoke
def test_a_retry_keeps_its_place(rig: Rig) -> None:
    """Between two attempts, three ttl apart, duplicates still get the run's result."""
    first = publish(rig, "patient", "patient")
    until(lambda: first.state == "RETRY", what="the retry")
    until(lambda: waits(rig, first.id), what="the retry's place")
    deadline = time.monotonic() + 1.5 * publish_app.TTL
    while time.monotonic() < deadline:
        assert publish(rig, "patient", "patient").id == first.id
        time.sleep(0.2)

    assert first.get(timeout=30) == first.id
    assert [(run.run, run.attempt) for run in rig.runs("patient")] == [(first.id, 0), (first.id, 1)]


def test_a_planned_run_has_its_place_until_its_moment(rig: Rig) -> None:
    """An ETA of two ttl: one message, one run, and a slot that lives a minute longer than that."""
    eta = datetime.now(UTC) + timedelta(seconds=2 * publish_app.TTL)
    first = publish(rig, "once", "planned", {"eta": eta})
    life = record(rig, first.id).slot_expires_ms / 1000 - time.time()
    others = [publish(rig, "once", "planned", {"countdown": 1}) for _ in range(3)]

    assert {other.id for other in others} == {first.id}
    assert 60 < life <= 60 + 2 * publish_app.TTL
    assert first.get(timeout=30) == first.id
    assert len(rig.runs("planned")) == 1


@pytest.mark.parametrize("name", ["loop-once", "loop-next"])
def test_a_body_publishes_its_successor(rig: Rig, name: str) -> None:
    """Always accepted once and then a duplicate, whatever the timing; and nothing overlaps."""
    key = f"{name}-at-once"
    rig.app.tasks[name].apply_async(kwargs={"key": key, "rounds": 5})
    runs = rig.wait_start(key, 5)
    said = [rig.app.AsyncResult(run.run).get(timeout=30) for run in runs]

    assert said == [["accepted", "duplicate", True]] * 4 + [None]
    assert not overlaps(rig.runs(key))


def test_a_body_publishes_its_successor_from_inside_another_lease(rig: Rig) -> None:
    """A block with a lease of its own does not make the body's successor a duplicate of the body."""
    kwargs = {"key": "loop-inside", "rounds": 3, "inside": "inner"}
    rig.app.tasks["loop-once"].apply_async(kwargs=kwargs)
    runs = rig.wait_start("loop-inside", 3)
    said = [rig.app.AsyncResult(run.run).get(timeout=30) for run in runs]

    assert said == [["accepted", "duplicate", True]] * 2 + [None]
    assert not overlaps(runs)


def test_flows_links_and_preset_ids_are_always_sent(rig: Rig) -> None:
    """What others depend on is published whoever waits, and judged by the worker."""
    once = rig.app.tasks["once"]
    gate = rig.folder / "sent-gate"
    first = publish(rig, "once", "sent", gate=str(gate))
    rig.wait_start("sent")
    given = uuid()
    single = [
        publish(rig, "once", "sent", {"task_id": given}),
        publish(rig, "once", "sent", {"link": once.si("sent-link")}),
        publish(rig, "once", "sent", {"link_error": once.si("sent-error")}),
        rig.app.send_task("once", ("sent",)),
        chain(once.si("sent"), once.si("sent-chain")).apply_async().parent,
        *group(once.si("sent"), once.si("sent")).apply_async().results,
    ]
    states = rig.states(single)
    gate.touch()

    assert first.id not in [result.id for result in single]
    assert given in [result.id for result in single]
    assert states == ["REVOKED"] * 7
    assert first.get(timeout=30) == first.id


def test_a_backlog_of_ticks_does_not_grow(rig: Rig) -> None:
    """Beat publishes a task that nobody works on: its later ticks are duplicates of the one that waits."""
    schedule = {"tick": {"task": "once", "schedule": 0.5, "args": ["ticked"], "options": {"queue": "ticks"}}}
    env = {
        **import_path(rig.folder),
        "CELERY_BROKER_URL": rig.broker.url,
        "CELERY_RESULT_BACKEND": rig.broker.url,
        worker_app.STORE: rig.store_url,
        worker_app.CONF: json.dumps({"beat_schedule": schedule}),
    }
    argv = [*celery_command(publish_app.__name__), "beat", "-l", "INFO", "--scheduler", "singleflight"]
    beat = Child(argv, log=rig.folder / "beat.log", ready="beat: Starting", env=env)
    try:
        until(lambda: beat.log().count("once: run") >= 5, 30, "five ticks that were not sent")
    finally:
        beat.kill()
    with rig.app.connection_for_read() as connection:
        waiting = connection.default_channel.client.llen("ticks")

    assert waiting == 1


def plain() -> None:
    """Do nothing."""


KILLED = """
import os, signal, sys
from tests.integration.publish_app import app
app.singleflight.leases.store.queue = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
app.tasks["once"].delay("killed")
"""


def test_a_publisher_killed_before_it_took_the_slot_mutes_nothing(rig: Rig) -> None:
    """Its message runs, and publishers after it are served."""
    env = {
        **os.environ,
        **import_path(rig.folder),
        "CELERY_BROKER_URL": rig.broker.url,
        "CELERY_RESULT_BACKEND": rig.broker.url,
        worker_app.STORE: rig.store_url,
    }
    done = subprocess.run([sys.executable, "-c", KILLED], env=env, cwd=rig.folder, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    rig.wait_start("killed")
    result = until(lambda: not (r := publish(rig, "once", "killed")).duplicate and r, what="a fresh publish")

    assert result.get(timeout=30) == result.id
    assert not overlaps(rig.runs("killed"))


def test_a_slot_under_another_key_is_freed_by_the_worker(rig: Rig) -> None:
    """If worker and publisher disagree about a key, the publisher's slot does not outlive the wait."""
    for _ in range(3):
        result = publish(rig, "disputed", "disputed")
        assert not result.duplicate
        assert result.get(timeout=30) == result.id


def test_the_key_is_made_of_decoded_arguments(rig: Rig) -> None:
    """A tuple that arrives as a list, and the list, are one key for the publisher too."""
    decoded = rig.app.tasks["decoded"]
    first = decoded.apply_async(("decoded", (1, (2, 3))), queue=IDLE)
    second = decoded.apply_async((), {"values": [1, [2, 3]], "key": "decoded"}, queue=IDLE)

    assert second.id == first.id


def test_a_skipped_run_leaves_no_slot(rig: Rig) -> None:
    """A run that was published with a slot and then skipped is in nobody's way, results or not."""
    gate = rig.folder / "skipped-gate"
    waiting = publish(rig, "once", "skipped", {"countdown": 2, "ignore_result": True})
    rig.app.send_task("once", ("skipped",), {"gate": str(gate)})
    rig.wait_start("skipped")
    until(lambda: rig.said(f"{waiting.id} skipped"), what="the skip")
    gate.touch()
    third = until(lambda: not (r := publish(rig, "once", "skipped")).duplicate and r, what="a fresh publish")

    assert third.get(timeout=30) == third.id
    assert waiting.id not in [run.run for run in rig.runs("skipped")]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("strict", {}),
        ("once", {"ignore_result": True}),
        ("once", {"singleton": Singleton(by="key", at_most_one="waiting_or_running", skip_result="none")}),
    ],
    ids=["refused", "skipped", "skip_result"],
)
def test_a_publisher_slower_than_the_end_of_its_run_takes_no_slot(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    """A run that was refused or skipped before its publisher asked for the slot would mute its key."""
    key = uuid()
    gate, store = rig.folder / f"{key}-gate", rig.app.singleflight.slots._store
    publish(rig, name, key, gate=str(gate))
    rig.wait_start(key)
    queue = store.queue

    def late(key: str, run_id: str, **how: Any) -> Any:
        until(lambda: rig.final(run_id), what="the run's end on record")
        return queue(key, run_id, **how)

    monkeypatch.setattr(store, "peek", lambda _: None)  # as if the other run had started just after
    monkeypatch.setattr(store, "queue", late)
    second = publish(rig, name, key, options)
    monkeypatch.undo()
    gate.touch()

    assert not waits(rig, second.id)
    assert len(rig.runs(key)) == 1


@pytest.mark.timeout(240)
def test_a_thousand_publishes_outlast_a_store_that_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None waits longer than `store_timeout`, one in five seconds waits at all, each result is usable.

    The outage is told once.
    """
    failures: list[Event] = []

    def listen(event: Event) -> None:
        if event.kind is Kind.STORE_ERROR:
            failures.append(event)

    with Rig(tmp_path, install={"store_timeout": 1.0, "listeners": [listen]}) as rig:
        once, results = rig.app.tasks["once"], list[Any]()
        waiting, quick = list[float](), list[float]()
        start = hung = time.monotonic()
        early = 0
        for count in range(1000):
            if count == 300:
                rig.store.pause()
                early, hung = len(failures), time.monotonic()
            began = time.monotonic()
            results.append(once.delay("hangs"))
            took = time.monotonic() - began
            (waiting if took > 0.9 else quick).append(took)  # both tries of a request
            if count >= 300:
                time.sleep(0.01)
        end = time.monotonic()
        rig.store.resume()
        until(lambda: once.apply_async(("hangs",), queue="after").duplicate, what="a duplicate that is seen")
        messages = rig.queued()

    sent = {result.id for result in results if not result.duplicate}
    with capsys.disabled():
        sys.stdout.write(
            f"\n1,000 publishes, {end - hung:.1f} s of them without a store: {messages} messages, "
            f"{len(waiting)} calls waited for it, {max(waiting):.2f} s at most, others {max(quick):.2f} s\n"
        )
    assert messages == len(sent)
    assert {result.id for result in results} == sent
    assert not any(result.duplicate for result in results[300:])
    # On a machine so busy that the store itself needs a second, there are outages before this one.
    assert early or {result.id for result in results[:300]} == {results[0].id}
    assert len(failures) == early + 1
    assert 2 <= len(waiting) <= 1 + (end - start) / 5
    assert max(waiting) < 1.0 + max(quick) + SLACK


def test_results_that_only_their_publisher_sees_are_refused() -> None:
    """`rpc://` cannot give a duplicate's publisher another run's result: refused when publishing."""
    app = worker_app.make_app("memory://", "rpc://", "memory://")
    task = app.task(name="refused", shared=False, singleton=Singleton(at_most_one="waiting_or_running"))(
        plain
    )

    with pytest.raises(ConfigurationError, match="rpc://"):
        task.delay()
    app.close()
