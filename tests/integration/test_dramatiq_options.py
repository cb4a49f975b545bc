"""What Dramatiq's own options do to singletons: limits of time and age, delays, priorities, shutdown."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from dramatiq import Message

from singleflight import Singleton
from tests.support.bodylog import of_key, overlaps, starts
from tests.support.dramatiq_nodes import Cluster
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that most tests of this file share; each test has its own keys."""
    with Cluster(tmp_path_factory.mktemp("dramatiq")) as cluster:
        cluster.start(2)
        yield cluster
        assert not cluster.endless()


def test_a_run_over_its_time_limit_frees_its_key_for_its_retry(cluster: Cluster, gate: Path) -> None:
    """A body that is interrupted has ended: its lease is free at once, and its retry need not wait."""
    options = Singleton(by="key", ttl=60)
    message = cluster.actors.work.send_with_options(
        args=("limited", 0, str(gate)), singleton=options, time_limit=1_000
    )
    until(lambda: any(run.how for run in of_key(cluster.log.runs(), "limited")), what="the interrupt")
    gate.touch()
    assert cluster.result(message) == "limited"

    *interrupted, last = starts(cluster.log.runs(), message.message_id)
    assert {run.how for run in interrupted} == {"TimeLimitExceeded"}
    assert (last.attempt, last.how) == (len(interrupted), "returned")
    assert not overlaps([*interrupted, last])
    assert not cluster.told([message])


def test_a_deferral_changes_nothing_else_and_ends_with_the_age_limit(cluster: Cluster, gate: Path) -> None:
    """A waiting message keeps its options; one that gets too old is dead, and another one may wait."""
    send, options = cluster.actors.work.send_with_options, Singleton(by="key", on_conflict="coalesce")
    dead = cluster.dead()
    holder = send(args=("aged", 0, str(gate)), singleton=options)
    until(lambda: of_key(cluster.log.runs(), "aged"), what="the run in the way")
    old = send(args=("aged",), singleton=options, max_age=1_000)
    until(lambda: cluster.dead() == dead + 1, what="the end of the old one")
    young = send(args=("aged",), singleton=options, max_age=60_000, broker_priority=7, note="kept")
    until(lambda: cluster.told([young]), what="what becomes of the young one")
    deferred = until(lambda: _queued(cluster, young), what="the deferred message")
    gate.touch()
    assert cluster.result(young) == "aged"

    assert cluster.told([old, young]) == {"deferred": 2}
    assert (list(deferred.args), deferred.message_timestamp) == (["aged"], young.message_timestamp)
    ours = ("eta", "redis_message_id", "singleflight")
    others = {name: value for name, value in deferred.options.items() if name not in ours}
    assert others == {"max_age": 60_000, "broker_priority": 7, "note": "kept"}
    runs = of_key(cluster.log.runs(), "aged")
    assert [run.run for run in runs] == [holder.message_id, young.message_id]
    assert not overlaps(runs)


def test_a_delayed_message_takes_its_lease_when_it_starts(cluster: Cluster) -> None:
    """A message with a delay is in nobody's way until it is due, and does not run before."""
    send, options = cluster.actors.work.send_with_options, Singleton(by="key", on_conflict="defer")
    sent = time.monotonic()
    late = send(args=("delayed",), singleton=options, delay=1_500)
    soon = send(args=("delayed",), singleton=options)
    assert [cluster.result(message) for message in (soon, late)] == ["delayed"] * 2

    runs = of_key(cluster.log.runs(), "delayed")
    assert [run.run for run in runs] == [soon.message_id, late.message_id]
    assert runs[1].started - sent > 1.4
    assert not overlaps(runs)
    assert not cluster.told([soon])


def test_priorities_hold_and_a_run_that_hears_of_the_shutdown_comes_back(tmp_path: Path, gate: Path) -> None:
    """Of singletons that wait in a worker the most urgent starts first; one that is shut down is retried."""
    with Cluster(tmp_path, env={"dramatiq_queue_prefetch": "9"}) as cluster:
        work, urgent = cluster.actors.work.send_with_options, cluster.actors.urgent.send_with_options
        options = {"singleton": Singleton(by="key", ttl=60)}
        (first,) = cluster.start(threads=1)
        work(args=("holder", 0, str(gate)), **options)
        until(cluster.log.runs, what="the run that all others wait for")
        sends = [(work, "low-1"), (work, "low-2"), (urgent, "urgent"), (work, "last")]
        for place, (send, key) in enumerate(sends, start=2):
            send(args=(key,), **options)
            # One at a time: when the last one is fetched, the others have their places in the worker.
            until(lambda n=place: _fetched(cluster) == n, what=key)
        gate.touch()
        until(lambda: len(cluster.log.runs()) == 5, what="all runs")
        assert [run.key for run in cluster.log.runs()][:2] == ["holder", "urgent"]

        closed = tmp_path / "closed"
        told = work(args=("told", 0, str(closed)), notify_shutdown=True, **options)
        until(lambda: starts(cluster.log.runs(), told.message_id), what="the run")
        first.send(signal.SIGTERM)
        assert first.wait() == 0
        closed.touch()
        cluster.start()
        assert cluster.result(told) == "told"

        runs = starts(cluster.log.runs(), told.message_id)
        assert [(run.attempt, run.how) for run in runs] == [(0, "Shutdown"), (1, "returned")]
        assert not cluster.told([told])


def _fetched(cluster: Cluster) -> int:
    """Return how many messages workers have fetched and not acknowledged."""
    keys = cluster.client.scan_iter("dramatiq:__acks__.*.default")
    return sum(int(cluster.client.scard(key)) for key in keys)


def _queued(cluster: Cluster, message: Message[Any]) -> Message[Any] | None:
    """Return a message as it waits in the broker."""
    for queue in ("default.DQ", "default"):
        for data in cluster.client.hvals(f"dramatiq:{queue}.msgs"):
            found: Message[Any] = Message.decode(data)
            if found.message_id == message.message_id:
                return found
    return None
