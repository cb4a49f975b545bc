"""What Celery's own means of watching show: signals, a real receiver of events, and Flower."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING, Any, Self

import pytest
from celery.events.state import State

from singleflight import Conflict, Singleton
from tests.integration import signals_app
from tests.support.beside import beside
from tests.support.child import Child
from tests.support.rig import Rig
from tests.support.servers import free_port
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.result import AsyncResult

DEFER = {"singleton": Singleton(on_conflict="defer")}
RAISE = {"singleton": Singleton(on_conflict="raise")}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run one worker that sends events and has a receiver for every signal."""
    with Rig(tmp_path_factory.mktemp("monitors")) as rig:
        yield rig.start(1, concurrency=4, args=["-E", "-I", signals_app.__name__])


class Watch:
    """A receiver of events in a thread, and the state that monitors make of them."""

    def __init__(self, rig: Rig) -> None:
        self.events: list[dict[str, Any]] = []
        self.state = State()
        self._connection = rig.app.connection_for_read()
        self._receiver = rig.app.events.Receiver(self._connection, handlers={"*": self._take})
        self._thread = threading.Thread(target=self._receiver.capture, kwargs={"limit": None}, daemon=True)

    def _take(self, event: dict[str, Any]) -> None:
        self.state.event(event)
        self.events.append(event)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(10)
        self._connection.close()

    def of(self, result: AsyncResult) -> dict[str, dict[str, Any]]:
        """Return a run's events by type."""
        return {event["type"]: event for event in self.events if event.get("uuid") == result.id}


@pytest.fixture(scope="module")
def watch(rig: Rig) -> Iterator[Watch]:
    """Watch the worker, once its events arrive."""
    with Watch(rig) as watch:
        until(lambda: rig.send("plain", "heard") and watch.events, what="any event", every=0.2)
        yield watch


@pytest.fixture(scope="module")
def fates(rig: Rig, watch: Watch) -> dict[str, AsyncResult]:
    """Publish a run, and a duplicate for each fate; return their results once all are over."""
    del watch  # it must be there before they are sent
    gate = rig.folder / "fates"
    first = rig.send("probe", "fates", gate=str(gate))
    rig.wait_start("fates")
    sent = {"first": first, "skipped": rig.send("probe", "fates")}
    sent["deferred"] = rig.send("probe", "fates", DEFER)
    sent["refused"] = rig.send("probe", "fates", RAISE)
    for fate in ("skipped", "deferred", "refused"):
        until(lambda fate=fate: rig.said(f"{sent[fate].id} {fate}"), 20, f"what is {fate}")
    gate.touch()
    rig.states(list(sent.values()))
    rig.copy(rig.app.tasks["probe"].si("fates"), first.id)
    sent["dropped"] = first
    until(lambda: rig.said(f"{first.id} dropped"), what="the drop of a copy")
    return sent


@pytest.mark.smoke
def test_every_fate_is_a_signal_in_the_worker(rig: Rig, fates: dict[str, AsyncResult]) -> None:
    """Sender is the task, the event tells run, key and reason; a receiver that raises changes nothing."""
    for fate in ("skipped", "deferred", "refused", "dropped"):
        name, run = f"singleflight_{fate}", fates[fate].id
        (said, *_) = until(
            lambda name=name, run=run: [
                line
                for line in signals_app.heard(rig.folder)
                if line["signal"] == name and line["run"] == run
            ],
            10,
            f"the signal {name}",
        )
        assert said["sender"] == "probe"
        assert said["reason"] == ("finished" if fate == "dropped" else "running")
        assert said["key"].startswith("probe")
    with pytest.raises(Conflict):
        fates["refused"].get(timeout=30)
    assert fates["deferred"].get(timeout=30) == fates["deferred"].id


def test_a_lost_lease_is_a_signal(rig: Rig) -> None:
    """A run whose lease was evicted hears singleflight_lost while it works, and goes on."""
    gate = rig.folder / "lost"
    result = rig.send("probe", "lost", gate=str(gate))
    rig.wait_start("lost")
    (key,) = [key for key, record in rig.records().items() if record.run_id == result.id]
    rig.app.singleflight.leases.store.evict(key)
    until(
        lambda: (
            {"singleflight_lost"}
            == {line["signal"] for line in signals_app.heard(rig.folder) if line["run"] == result.id}
        ),
        20,
        "the signal of the loss",
    )
    gate.touch()

    assert result.get(timeout=30) == result.id


def test_a_skipped_run_is_revoked_with_its_reason_for_every_monitor(
    watch: Watch, fates: dict[str, AsyncResult]
) -> None:
    """Celery's own State, which monitors use, has it as REVOKED and not as started for ever."""
    skipped = until(lambda: watch.state.tasks.get(fates["skipped"].id), what="the skipped run")
    until(lambda: skipped.state == "REVOKED", what="its end")

    assert skipped.exception == f"Skipped('duplicate of run {fates['first'].id} (running)')"
    assert "task-failed" not in watch.of(fates["skipped"])
    assert "task-revoked" not in watch.of(fates["first"])


def test_every_fate_is_an_event_of_its_own(watch: Watch, fates: dict[str, AsyncResult]) -> None:
    """Receivers get singleflight-skipped, -deferred and -dropped with task, run and reason."""
    for fate in ("skipped", "deferred", "dropped"):
        run, kind = fates[fate], f"singleflight-{fate}"
        event = until(lambda run=run, kind=kind: watch.of(run).get(kind), 20, f"the event {kind}")
        assert event["name"] == "probe"
        assert event["reason"] or fate == "dropped"


def test_flower_shows_a_skipped_task_as_revoked_with_its_reason(rig: Rig) -> None:
    """Flower, started as its documentation says, answers so in its API."""
    beside("flower")
    port = free_port()
    argv = [sys.executable, "-m", "celery", "-b", rig.broker.url, "flower", "--address=127.0.0.1"]
    flower = Child(
        [*argv, f"--port={port}"],
        log=rig.folder / "flower.log",
        ready="Visit me at",
        env={"FLOWER_UNAUTHENTICATED_API": "true"},
    )
    try:
        flower.wait_ready()

        def known() -> dict[str, dict[str, Any]]:
            url = f"http://127.0.0.1:{port}/api/tasks?limit=1000"
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: dict[str, dict[str, Any]] = json.load(answer)
                return found

        def shown(result: AsyncResult) -> dict[str, Any]:
            return known().get(result.id, {})

        # What was sent before Flower listened it never shows, and a task it shows only a moment after it was
        # sent: so each look is for all that were sent so far.
        heard: set[str] = set()
        until(
            lambda: heard.add(rig.send("plain", "flower").id) or heard & known().keys(),
            what="Flower's first task",
            every=0.5,
        )
        gate = rig.folder / "flower-gate"
        first = rig.send("probe", "flower", gate=str(gate))
        rig.wait_start("flower")
        skipped = rig.send("probe", "flower")
        until(lambda: shown(skipped).get("state") == "REVOKED", what="the skipped task", every=0.2)
        assert f"duplicate of run {first.id}" in shown(skipped)["exception"]
        gate.touch()
        until(lambda: shown(first).get("state") == "SUCCESS", what="the first task", every=0.2)
    finally:
        flower.kill()
