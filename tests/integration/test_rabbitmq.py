"""Dramatiq and Celery on RabbitMQ, which redelivers at once and says so; the leases are on a Valkey."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import celery
import pytest
from dramatiq import group

from singleflight import Singleton
from singleflight.dramatiq import Duplicate
from tests.integration.worker_app import TTL
from tests.support.bodylog import of_key, overlaps, starts
from tests.support.rabbit import RabbitServer
from tests.support.rabbit_nodes import RabbitCluster
from tests.support.rig import Rig
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(360)  # RabbitMQ may need long to start


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitServer]:
    """Run one RabbitMQ for this file; each test leaves its queues empty."""
    with RabbitServer() as server:
        yield server


@pytest.fixture
def cluster(rabbit: RabbitServer, tmp_path: Path) -> Iterator[RabbitCluster]:
    """Return Dramatiq on this RabbitMQ, without workers yet; no key of ours may stay for ever."""
    with RabbitCluster(tmp_path, rabbit) as cluster:
        yield cluster
        assert not cluster.endless()


def test_dramatiq_runs_one_at_a_time_and_loses_no_deferred_message(cluster: RabbitCluster) -> None:
    """Of many messages to one key those that skip are skipped, all that wait run, and no two overlap."""
    cluster.start(2)
    actors = cluster.actors
    skipping = [actors.nightly.send(0.05) for _ in range(100)]
    options = Singleton(by="key", on_conflict="defer", ttl=1)
    waiting = [actors.work.send_with_options(args=("deferred", 0.05), singleton=options) for _ in range(6)]
    for message in waiting:
        assert cluster.result(message) == "deferred"

    def ran() -> set[str]:
        return {run.run for run in of_key(cluster.log.runs(), "nightly")}

    until(
        lambda: len(ran()) + cluster.told(skipping).get("skipped", 0) == len(skipping),
        what="the end of every message",
    )
    assert 1 <= len(ran()) < len(skipping)
    runs = of_key(cluster.log.runs(), "deferred")
    assert sorted(run.run for run in runs) == sorted(message.message_id for message in waiting)
    assert {run.attempt for run in runs} == {0}
    assert not overlaps(cluster.log.runs())
    assert cluster.dead() == 0


def test_dramatiq_completes_a_group_with_skipped_members_once(cluster: RabbitCluster, tmp_path: Path) -> None:
    """Of ten equal members one runs; the callback comes after it, once, and no waiter is left."""
    gate = tmp_path / "gate"
    cluster.start(2)
    work, after = cluster.actors.work, cluster.actors.after
    options = {"singleton": Singleton(by="key")}
    members = [work.message_with_options(args=("grouped", 0, str(gate)), **options) for _ in range(10)]
    many = group(members, broker=cluster.actors.broker)
    many.add_completion_callback(after.message(None, "callback"))
    many.run()
    until(lambda: cluster.told(members) == {"skipped": 9}, what="nine skipped members")
    assert not of_key(cluster.log.runs(), "callback")
    gate.touch()
    until(lambda: of_key(cluster.log.runs(), "callback"), what="the callback")
    until(cluster.idle, what="empty queues")

    assert len(of_key(cluster.log.runs(), "grouped")) == 1
    assert len(of_key(cluster.log.runs(), "callback")) == 1


def test_dramatiq_does_not_send_a_duplicate(cluster: RabbitCluster) -> None:
    """Of three messages that are sent before any worker starts one exists, and all three get its result."""
    messages = [cluster.actors.either.send("sent") for _ in range(3)]
    cluster.start()

    assert [isinstance(message, Duplicate) for message in messages] == [False, True, True]
    assert [cluster.result(message) for message in messages] == ["sent"] * 3
    assert len(of_key(cluster.log.runs(), "sent")) == 1


def test_dramatiq_brings_a_killed_run_back_after_its_dead_lease(
    cluster: RabbitCluster, tmp_path: Path
) -> None:
    """A message that is redelivered at once waits for the lease of its dead worker, and runs once more."""
    gate, ttl = tmp_path / "gate", 4
    (first,) = cluster.start()
    message = cluster.actors.work.send_with_options(
        args=("killed", 0, str(gate)), singleton=Singleton(by="key", ttl=ttl)
    )
    until(cluster.log.runs, what="the first run")
    cluster.start()
    first.kill()
    died = time.monotonic()
    left = cluster.lease_left()
    gate.touch()
    assert cluster.result(message) == "killed"

    runs = starts(cluster.log.runs(), message.message_id)
    assert [run.how for run in runs] == [None, "returned"]
    assert runs[1].fence > runs[0].fence
    assert not overlaps(runs)
    assert runs[1].started >= died + left
    assert sum(cluster.waits(message)[:-1]) <= ttl  # before the last deferral the dead lease still lived


def test_dramatiq_never_skips_a_killed_run_whose_key_was_taken(rabbit: RabbitServer, tmp_path: Path) -> None:
    """If another run holds the key when a crashed run comes back, it waits, although its word is skip."""
    first_gate, second_gate = tmp_path / "first", tmp_path / "second"
    options = Singleton(by="key", ttl=1)
    with RabbitCluster(tmp_path, rabbit, prefetch=1) as cluster:
        send = cluster.actors.work.send_with_options
        (first,) = cluster.start(threads=1)
        killed = send(args=("key", 0, str(first_gate)), singleton=options)
        (run,) = until(cluster.log.runs, what="the first run")
        os.kill(run.pid, signal.SIGSTOP)  # its lease ends, its connection stays
        cluster.start(2)  # one takes the key, the other gets what comes back
        # A message that is deferred goes to any worker that lives, so perhaps to the one that stands still.
        until(lambda: not cluster.lease_left(), what="the end of the paused worker's lease")
        other = send(args=("key", 0, str(second_gate)), singleton=replace(options, on_conflict="defer"))
        until(lambda: starts(cluster.log.runs(), other.message_id), what="the other run")
        first.kill()
        first_gate.touch()
        until(lambda: f"{killed.message_id} deferred" in cluster.logs(), what="the crashed run's return")
        second_gate.touch()
        assert cluster.result(killed) == "key"

        runs = of_key(cluster.log.runs(), "key")
        assert not overlaps(runs)
        assert len(starts(runs, killed.message_id)) == 2
        assert len(starts(runs, other.message_id)) == 1


def test_dramatiq_loses_nothing_while_the_store_is_away(cluster: RabbitCluster, tmp_path: Path) -> None:
    """While the leases' server is down for five seconds nothing runs unguarded or counts as a retry."""
    gate = tmp_path / "gate"
    threads = 16
    cluster.start(2, threads=threads // 2)
    send, options = cluster.actors.work.send_with_options, Singleton(by="key")
    sent = [send(args=(f"key{i}", 0, str(gate)), singleton=options) for i in range(100)]
    until(lambda: len(cluster.log.runs()) == threads, what="a run in each thread")
    cluster.store.stop()
    gate.touch()
    time.sleep(5)
    seen = len(cluster.log.runs())
    cluster.store.start()
    until(lambda: len(cluster.log.runs()) >= 100, 60, "all runs")
    until(cluster.idle, what="empty queues")

    runs = cluster.log.runs()
    assert seen == threads
    assert sorted(run.run for run in runs) == sorted(message.message_id for message in sent)
    assert all(run.fence for run in runs)
    assert {run.attempt for run in runs} == {0}
    assert cluster.dead() == 0


@pytest.fixture(scope="module")
def rig(rabbit: RabbitServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two Celery workers of four processes on RabbitMQ's classic queues."""
    with Rig(tmp_path_factory.mktemp("celery"), broker_url=rabbit.url, conf=CELERY) as rig:
        yield rig.start(2, concurrency=4)
        assert not rig.endless_keys()


CELERY = {"broker_transport_options": {}}
QUORUM = {
    **CELERY,
    "task_default_queue": "lasting",  # nobody consumes it
    "task_queues": {
        name: {
            "exchange": name,
            "exchange_type": "topic",  # a direct exchange has no native delayed delivery
            "routing_key": name,
            "queue_arguments": {"x-queue-type": "quorum"},
        }
        for name in ("lasting", "special", "other")
    },
}


def test_celery_runs_one_at_a_time_and_loses_no_deferred_task(rig: Rig) -> None:
    """Of many tasks of one key those that skip end REVOKED, all that wait run, and no two overlap."""
    defer = {"singleton": Singleton(by="key", on_conflict="defer", ttl=TTL)}
    skipping = [rig.send("probe", "skipping", seconds=0.2) for _ in range(20)]
    waiting = [rig.send("probe", "waiting", defer, seconds=0.05) for _ in range(8)]

    assert set(rig.states(waiting)) == {"SUCCESS"}
    states = rig.states(skipping)
    assert sorted(run.run for run in rig.runs("waiting")) == sorted(result.id for result in waiting)
    assert states.count("SUCCESS") == len(rig.runs("skipping")) >= 1
    assert states.count("REVOKED") == 20 - states.count("SUCCESS") >= 1
    assert not overlaps(rig.log.runs())


def test_celery_brings_the_run_of_a_killed_worker_back_within_its_ttl(rig: Rig) -> None:
    """After kill -9 of a whole worker RabbitMQ redelivers at once; the run waits for its dead lease only."""
    gate = rig.folder / "gate"
    doomed = rig.worker(concurrency=1, args=["-Q", "doomed"])
    result = rig.send("late", "worker", {"queue": "doomed"}, gate=str(gate))
    rig.wait_start("worker")
    heir = rig.worker(concurrency=1, args=["-Q", "doomed"])
    doomed.child.kill()
    died = time.monotonic()
    gate.touch()

    assert result.get(timeout=30) == result.id
    first, second = rig.runs("worker")
    assert [(run.run, run.how) for run in (first, second)] == [(result.id, None), (result.id, "returned")]
    assert second.started - died < TTL + SOON
    assert f"{result.id} deferred" in heir.logs()


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery has quorum queues since 5.5")
def test_celery_defers_on_quorum_queues_by_native_delayed_delivery(
    rabbit: RabbitServer, tmp_path: Path
) -> None:
    """The broker holds deferred tasks; however often and long, they come back to their queue and run once."""
    gate = tmp_path / "gate"
    options = {"queue": "special", "singleton": Singleton(by="key", on_conflict="defer", ttl=30)}
    with Rig(tmp_path, broker_url=rabbit.url, conf=QUORUM) as rig:
        with rig.app.connection_for_write() as connection:
            for (
                queue
            ) in rig.app.amqp.queues.values():  # a Celery 5.5 worker binds to all, but declares its own
                queue(connection.default_channel).declare()
        rig.start(1, name="quorum", args=["-Q", "special,other"])
        logs = rig.workers[0].logs
        first = rig.send("late", "quorum", options, gate=str(gate))
        rig.wait_start("quorum")
        later = [rig.send("late", "quorum", options) for _ in range(3)]
        until(lambda: all(logs().count(f"{one.id} deferred") >= DEFERRALS for one in later), 30, "deferrals")
        gate.touch()

        assert rig.states([first, *later], 30) == ["SUCCESS"] * 4
        runs = rig.runs("quorum")
        assert sorted(run.run for run in runs) == sorted(one.id for one in [first, *later])
        assert not overlaps(runs)
        assert "direct exchange" not in logs()


@pytest.mark.parametrize("queue", ["celery", "special"])
def test_celery_runs_in_line_on_classic_and_quorum_queues(
    rabbit: RabbitServer, tmp_path: Path, queue: str
) -> None:
    """Parked messages are published to the queue that they came from, confirmed, in the order of arrival."""
    conf = {**(CELERY if queue == "celery" else QUORUM), "singleflight_waiting": "line"}
    options = {"queue": queue, "singleton": Singleton(by="key", on_conflict="defer", ttl=30)}
    with Rig(tmp_path, broker_url=rabbit.url, conf=conf) as rig:
        with rig.app.connection_for_write() as connection:
            for one in rig.app.amqp.queues.values():
                one(connection.default_channel).declare()
        rig.start(1, name="lined", args=["-Q", queue])
        results = [rig.send("late", queue, options, gate=str(tmp_path / "gate"))]
        rig.wait_start(queue)
        for _ in range(3):
            results.append(rig.send("late", queue, options))
            rig.until_waiting(results[-1])
        (tmp_path / "gate").touch()

        assert rig.states(results, 30) == ["SUCCESS"] * 4
        assert [run.run for run in rig.runs(queue)] == [result.id for result in results]


DEFERRALS = 6
"""So many end in delays that pass a queue of the broker's twice, which it must not take for a circle."""


MORTAL = {
    **CELERY,
    "task_acks_on_failure_or_timeout": False,
    "task_queues": {
        name: {
            "exchange": name,
            "routing_key": name,
            "queue_arguments": {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": after,
                **limits,
            },
        }
        for name, after, limits in [
            ("mortal", "mortal.later", {}),
            ("mortal.later", "mortal", {"x-message-ttl": 1000}),
        ]
    },
}
"""A queue whose rejected messages come back a second later, by way of another one."""


def test_celery_runs_what_a_dead_letter_queue_sends_again(rabbit: RabbitServer, tmp_path: Path) -> None:
    """A failed run whose message is rejected, not acknowledged, has not ended: it is no late copy."""
    with Rig(tmp_path, broker_url=rabbit.url, conf=MORTAL) as rig:
        with rig.app.connection_for_write() as connection:
            for queue in rig.app.amqp.queues.values():
                queue(connection.default_channel).declare()
        rig.start(1, name="mortal", concurrency=1, args=["-Q", "mortal"])
        result = rig.send("late", "mortal", {"queue": "mortal"}, then="fail-once")
        # A result that has seen a failure does not look again.
        until(lambda: rig.app.AsyncResult(result.id).state == "SUCCESS", 60, "its success")

        runs = rig.runs("mortal")
        assert [(run.run, run.how) for run in runs] == [(result.id, "ValueError"), (result.id, "returned")]
