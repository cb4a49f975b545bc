"""Scenarios 85 to 100: troubles of users with duplicates at publishing, on real brokers and workers."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery.utils import uuid
from kombu.exceptions import OperationalError

from singleflight import Event, Singleton, StoreUnavailable
from singleflight.events import Kind
from tests.integration import publish_app
from tests.support.bodylog import overlaps
from tests.support.rig import Rig
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery.result import AsyncResult

INCLUDE = ["-I", publish_app.__name__]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run three workers for all scenarios that hurt none."""
    with Rig(tmp_path_factory.mktemp("publishing")) as rig:
        yield rig.start(3, concurrency=3, args=INCLUDE)
        assert not rig.endless_keys()


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Rig]:
    """Return a rig of its own, without workers."""
    with Rig(tmp_path) as rig:
        yield rig


def foreign(rig: Rig, name: str, key: str, **how: Any) -> AsyncResult:
    """Publish the bare message that a program in another language would."""
    task_id = uuid()
    with rig.app.connection_for_write() as connection:
        connection.SimpleQueue("celery").put(
            json.dumps([[key], how, {}]).encode(),
            headers={"task": name, "id": task_id, "lang": "go", "root_id": task_id},
            content_type="application/json",
            content_encoding="utf-8",
        )
    result: AsyncResult = rig.app.AsyncResult(task_id)
    return result


def test_scenario_85_producers_that_only_know_the_name_start_one_run(rig: Rig) -> None:
    """`send_task`, a signature by name and a foreign message meet the worker's own check."""
    gate = rig.folder / "gate-85"
    how = {"gate": str(gate)}
    results = [rig.app.send_task("once", ("85",), how) for _ in range(10)]
    results += [foreign(rig, "once", "85", **how) for _ in range(2)]
    until(lambda: sum(result.state == "REVOKED" for result in results) == 11, 30, "eleven skips")
    gate.touch()

    assert sorted(rig.states(results)) == ["REVOKED"] * 11 + ["SUCCESS"]
    assert len(rig.runs("85")) == 1


def test_scenario_86_a_failed_publish_gives_its_place_back(fragile: Rig) -> None:
    """The broker is away and `delay` raises; it is back, and the next call is published and runs."""
    once = fragile.app.tasks["once"]
    fragile.broker.stop()
    with pytest.raises(OperationalError):
        once.apply_async(("86",), retry=False, ignore_result=True)
    fragile.broker.start()
    second = once.delay("86")
    fragile.start(1, args=INCLUDE)

    assert not second.duplicate
    assert [run.run for run in fragile.wait_start("86")] == [second.id]


def test_scenario_88_no_publisher_meets_a_half_seen_duplicate(rig: Rig) -> None:
    """Twenty threads publish one short task: no exception, and each result is that of a run that exists."""
    once, ids, errors = rig.app.tasks["once"], set(), []
    end = time.monotonic() + 4

    def loop() -> None:
        try:
            while time.monotonic() < end:
                ids.add(once.delay("88").id)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=loop) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    results = [rig.app.AsyncResult(run) for run in ids]
    states = set(rig.states(results))

    assert not errors
    assert len(ids) > 1
    assert states <= {"SUCCESS", "REVOKED"}
    assert not overlaps(rig.runs("88"))


def test_scenario_89_a_skipped_publish_returns_a_handle(rig: Rig) -> None:
    """Its id, its value and that it is a duplicate can be had of it."""
    first = rig.send("once", "89", seconds=1.0)
    rig.wait_start("89")
    second = rig.app.tasks["once"].delay("89")

    assert second is not None
    assert (first.duplicate, second.duplicate) == (False, True)
    assert second.id == first.id
    assert second.get(timeout=30) == first.id


def test_scenario_92_a_task_that_publishes_itself_always_fares_the_same(rig: Rig) -> None:
    """In each mode, its first successor is always accepted, and a second one is always a duplicate."""
    rounds = 7
    loops = {f"92-{name}-{wait}": (name, wait) for name in ("loop-once", "loop-next") for wait in (0, 1)}
    for key, (name, wait) in loops.items():
        rig.app.tasks[name].apply_async(kwargs={"key": key, "rounds": rounds, "countdown": wait})
    for key in loops:
        runs = rig.wait_start(key, rounds, timeout=60)
        said = [rig.app.AsyncResult(run.run).get(timeout=30) for run in runs]

        assert said == [["accepted", "duplicate", True]] * (rounds - 1) + [None]
        assert not overlaps(runs)


def test_scenario_94_a_planned_message_is_not_blocked_by_its_own_place(fragile: Rig) -> None:
    """With a countdown, an ETA in the past, and a worker that restarts meanwhile: each runs once."""
    (worker,) = fragile.start(1, args=INCLUDE).workers
    once = fragile.app.tasks["once"]
    results = [
        once.apply_async(("94-countdown",), countdown=3),
        once.apply_async(("94-past",), eta=datetime.now(UTC) - timedelta(seconds=30)),
    ]
    until(lambda: fragile.queued() == 0, what="the receipt")
    worker.child.send(signal.SIGTERM)
    # A pool process whose result nobody reads any more gives billiard half a minute before it ends.
    until(lambda: not worker.child.alive, 60, "the warm shutdown")
    fragile.start(1, args=INCLUDE)

    assert [result.get(timeout=30) for result in results] == [result.id for result in results]
    assert [len(fragile.runs(key)) for key in ("94-countdown", "94-past")] == [1, 1]


@pytest.mark.parametrize("wanted", ["defer", "run", "skip", "raise"])
def test_scenario_98_a_store_that_is_down_is_no_duplicate(tmp_path: Path, wanted: str) -> None:
    """While the store hangs, `delay` publishes or raises, as told; once slow, then not asked for a while."""
    events: list[Event] = []
    with ValkeyServer() as store:
        install = {"store_timeout": 1.0}
        with Rig(
            tmp_path, conf={}, install={**install, "listeners": [events.append]}, store_server=store
        ) as rig:
            once = rig.app.tasks["once"]
            options = {"singleton": Singleton(on_store_error=wanted)}
            store.pause()
            asked, start = 0, time.monotonic()
            for _ in range(20):
                if wanted == "raise":
                    with pytest.raises(StoreUnavailable) as raised:
                        once.apply_async(("98",), **options)
                    asked += "not asked" not in str(raised.value)
                else:
                    assert not once.apply_async(("98",), **options).duplicate
            elapsed = time.monotonic() - start
            queued = rig.queued()
            store.resume()

    assert queued == (0 if wanted == "raise" else 20)
    assert {event.kind for event in events} <= {Kind.STORE_ERROR}
    assert 1 <= asked + len(events) <= 1 + elapsed / 5


def test_scenario_100_a_thousand_publishes_are_one_message(
    fragile: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight publishers, no worker: one message (one more for each that raced), a thousand usable results."""
    once, results = fragile.app.tasks["once"], []

    def publish() -> None:
        results.extend(once.delay("100") for _ in range(125))

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    messages = fragile.queued()
    with capsys.disabled():
        sys.stdout.write(f"\n1,000 publishes: {messages} messages in the queue\n")
    fragile.start(1, args=INCLUDE)
    states = fragile.states(results)
    values = {result.get(timeout=30) for result in results}

    assert len(results) == 1000
    assert messages == sum(not result.duplicate for result in results) <= 8
    assert states == ["SUCCESS"] * 1000
    assert values <= {run.run for run in fragile.runs("100")}
    assert not overlaps(fragile.runs("100"))


@pytest.mark.timeout(300)
def test_scenario_100_a_backlog_of_duplicates_leaves_the_queue_without_running(fragile: Rig) -> None:
    """Without a look at publishing: one start in the window, and all others end quickly."""
    probe = fragile.app.tasks["probe"]
    results = [probe.apply_async(("100-off",), singleton=Singleton(window=600)) for _ in range(1000)]
    assert fragile.queued() == 1000
    fragile.start(1, concurrency=4)
    until(fragile.broker_is_empty, 240, "an empty queue", every=0.2)

    assert len(fragile.runs("100-off")) == 1
    assert sorted(fragile.states(results)) == ["REVOKED"] * 999 + ["SUCCESS"]
