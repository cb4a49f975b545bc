"""Dramatiq workers that die, messages that come twice, and a store that goes away."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from singleflight import Singleton
from singleflight.dramatiq.marks import unmarked
from tests.integration.dramatiq_actors import HEARTBEAT
from tests.support.bodylog import of_key, overlaps, starts
from tests.support.dramatiq_nodes import Cluster
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

THREADS = 16
"""Of two workers."""


def test_a_killed_run_comes_back_and_waits_for_its_dead_lease(tmp_path: Path) -> None:
    """A message redelivered while the dead worker's lease still lives waits for it, and runs once more."""
    gate, ttl = tmp_path / "gate", 8
    options = Singleton(by="key", ttl=ttl)
    with Cluster(tmp_path) as cluster:
        (first,) = cluster.start()
        message = cluster.actors.work.send_with_options(args=("killed", 0, str(gate)), singleton=options)
        until(cluster.log.runs, what="the first run")
        cluster.start()
        first.kill()
        died = time.monotonic()
        left = cluster.lease_left()
        gate.touch()
        assert cluster.result(message) == "killed"
        until(cluster.idle, what="the acknowledgement")

        runs = starts(cluster.log.runs(), message.message_id)
        assert [run.how for run in runs] == [None, "returned"]
        assert runs[1].fence > runs[0].fence
        assert not overlaps(runs)
        assert runs[1].started >= died + left
        assert sum(cluster.waits(message)[:-1]) <= ttl  # before the last deferral the dead lease still lived


def test_a_killed_run_is_no_duplicate_of_a_run_that_took_its_key(tmp_path: Path) -> None:
    """If another run holds the key when a crashed run comes back, it waits, although its word is skip."""
    first_gate, second_gate = tmp_path / "first", tmp_path / "second"
    options = Singleton(by="key", ttl=1)
    # Workers wait long before they take one for dead: the publisher brings the message back, when it is time.
    with Cluster(tmp_path, env={HEARTBEAT: "600000"}) as cluster:
        actors = cluster.actors
        actors.broker.maintenance_chance = 0
        (first,) = cluster.start()
        killed = actors.work.send_with_options(args=("key", 0, str(first_gate)), singleton=options)
        until(cluster.log.runs, what="the first run")
        first.kill()
        first_gate.touch()
        (second,) = cluster.start()
        other = actors.work.send_with_options(
            args=("key", 0, str(second_gate)), singleton=replace(options, on_conflict="defer")
        )
        until(lambda: starts(cluster.log.runs(), other.message_id), what="the other run")
        actors.broker.maintenance_chance = 1_000_000

        def has_come_back() -> bool:
            actors.after.send(None, "maintenance")
            return f"{killed.message_id} deferred" in second.log()

        until(has_come_back, what="the crashed run's return", every=0.5)
        second_gate.touch()
        assert cluster.result(killed) == "key"
        until(cluster.idle, what="the acknowledgement")

        runs = of_key(cluster.log.runs(), "key")
        assert not overlaps(runs)
        assert len(starts(runs, killed.message_id)) == 2
        assert len(starts(runs, other.message_id)) == 1


def test_of_three_copies_of_one_message_one_runs(tmp_path: Path) -> None:
    """Copies with one id, as a broker delivers after a lost acknowledgement, are one run, also afterwards."""
    gate = tmp_path / "gate"
    with Cluster(tmp_path) as cluster:
        cluster.start(2)
        actors = cluster.actors
        message = actors.work.message_with_options(
            args=("copies", 0, str(gate)), singleton=Singleton(by="key", ttl=3)
        )
        with unmarked.on():  # who enqueues a message again means another run
            for _ in range(3):
                actors.broker.enqueue(message)
        until(lambda: cluster.logs().count("deferred, key work:") >= 2, what="two copies that wait")
        gate.touch()
        until(cluster.idle, 60, "the end of all copies")

        assert len(starts(cluster.log.runs(), message.message_id)) == 1
        until(lambda: cluster.logs().count("dropped, key work:") == 2, what="the log to tell of both")
        assert cluster.result(message) == "copies"


def test_a_store_that_is_away_loses_nothing_and_lets_nothing_run(tmp_path: Path) -> None:
    """While the leases' server is down for five seconds nothing runs unguarded and no retry is counted."""
    gate = tmp_path / "gate"
    with Cluster(tmp_path, own_store=True) as cluster:
        cluster.start(2)
        send, options = cluster.actors.work.send_with_options, Singleton(by="key")
        sent = [send(args=(f"key{i}", 0, str(gate)), singleton=options) for i in range(100)]
        until(lambda: len(cluster.log.runs()) == THREADS, what="a run in each thread")
        cluster.store.stop()
        gate.touch()
        time.sleep(5)
        seen = len(cluster.log.runs())
        cluster.store.start()
        until(cluster.idle, 60, "the end of all messages")

        runs = cluster.log.runs()
        assert seen == THREADS
        assert sorted(run.run for run in runs) == sorted(message.message_id for message in sent)
        assert all(run.fence for run in runs)
        assert {run.attempt for run in runs} == {0}
        assert cluster.dead() == 0


def test_a_worker_that_is_told_to_end_finishes_its_run(tmp_path: Path) -> None:
    """After SIGTERM the run under way ends, its lease is given back, and the next run need not wait."""
    gate = tmp_path / "gate"
    with Cluster(tmp_path) as cluster:
        (first,) = cluster.start()
        message = cluster.actors.work.send_with_options(
            args=("stopped", 0, str(gate)), singleton=Singleton(by="key", ttl=60)
        )
        until(cluster.log.runs, what="the run")
        first.send(15)
        until(lambda: "Stopping worker process" in first.log(), what="the shutdown")
        gate.touch()
        assert first.wait() == 0
        cluster.start()
        again = cluster.actors.work.send_with_options(args=("stopped",), singleton=Singleton(by="key"))

        assert cluster.result(again) == "stopped"
        assert [run.run for run in cluster.log.runs()] == [message.message_id, again.message_id]
