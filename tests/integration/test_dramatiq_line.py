"""Dramatiq's runs that wait in the line of their key, with real workers, some of which are killed."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Singleton
from singleflight.api import PREFIX
from singleflight.stores import open_store
from singleflight.stores.lining import Lining
from singleflight.stores.optional import Listing
from tests.integration.dramatiq_actors import HEARTBEAT, WAITING
from tests.support.bodylog import overlaps, starts
from tests.support.dramatiq_nodes import Cluster
from tests.support.rabbit import RabbitServer
from tests.support.rabbit_nodes import RabbitCluster
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(150)

ENV = {WAITING: "line"}
DEFER = Singleton(by="key", on_conflict="defer", ttl=3)


def waiting(cluster: Cluster) -> list[str]:
    """Return who waits in the one line that there is, in order."""
    with closing(open_store(cluster.store.url)) as store:
        assert isinstance(store, Listing)
        assert isinstance(store, Lining)
        return [one.run_id for key in store.scan(PREFIX) for one in store.line_of(key).shown]


def send(cluster: Cluster, key: str, *args: Any) -> Any:
    """Send a message that is deferred while another one works."""
    return cluster.actors.work.send_with_options(args=(key, *args), singleton=DEFER)


def stand(cluster: Cluster, key: str, count: int, *args: Any) -> list[Any]:
    """Put messages in the line, one after the other."""
    messages, before = list[Any](), len(waiting(cluster))
    for number in range(1, count + 1):
        messages.append(send(cluster, key, *args))
        until(lambda length=before + number: len(waiting(cluster)) == length, what="its place in the line")
    return messages


def test_who_came_first_runs_first_and_nobody_waits_with_the_broker(tmp_path: Path) -> None:
    """Each takes two messages, and starts when the one before has ended; a retry comes behind the others."""
    gate = tmp_path / "gate"
    with Cluster(tmp_path, env=ENV) as cluster:
        cluster.start(2)
        first = send(cluster, "order", 0, str(gate))
        until(cluster.log.runs, what="the first run")
        messages = stand(cluster, "order", 1, 0.05, "", 1) + stand(cluster, "order", 7, 0.05)
        until(lambda: cluster.client.hlen("dramatiq:default.msgs") == 1, what="all acknowledgements")
        assert cluster.client.hlen("dramatiq:default.DQ.msgs") == 0
        gate.touch()
        assert [cluster.result(message) for message in [first, *messages]] == ["order"] * 9
        until(cluster.idle, what="the acknowledgement")

        runs = cluster.log.runs()
        ids = [message.message_id for message in messages]
        assert [run.run for run in runs] == [first.message_id, *ids, ids[0]]
        assert not overlaps(runs)
        assert waiting(cluster) == []
        assert not [key for key in cluster.endless() if b":home:" not in key]


def test_after_a_kill_another_worker_goes_on(tmp_path: Path) -> None:
    """The worker that holds the key dies: its run comes back, and the others are called by a sweep."""
    gate = tmp_path / "gate"
    # The dead one's own message stays away: only the sweep can call.
    with Cluster(tmp_path, env={**ENV, HEARTBEAT: "600000"}) as cluster:
        (first,) = cluster.start()
        send(cluster, "killed", 0, str(gate))
        until(cluster.log.runs, what="the first run")
        messages = stand(cluster, "killed", 3)
        cluster.start()
        first.kill()
        died = time.monotonic()
        assert [cluster.result(message) for message in messages] == ["killed"] * 3

        runs = cluster.log.runs()
        assert [run.run for run in runs[1:]] == [message.message_id for message in messages]
        assert runs[1].started - died < SOON
        assert not overlaps(runs)


def test_nothing_is_lost_and_nothing_overlaps_while_workers_are_killed(tmp_path: Path) -> None:
    """Thirty runs of one key, some of which retry; a worker is killed again and again."""
    with Cluster(tmp_path, env=ENV) as cluster:
        cluster.start(2)
        messages = [send(cluster, "many", 0.2, "", number % 5 == 0) for number in range(30)]
        for _ in range(4):
            time.sleep(1.5)
            next(worker for worker in cluster.workers if worker.alive).kill()
            cluster.start()
        for message in messages:
            assert cluster.result(message) == "many"
        until(cluster.idle, 60, "the end of all copies", every=0.5)

        runs = cluster.log.runs()
        assert not overlaps(runs)
        for message in messages:
            assert starts(runs, message.message_id)[-1].how == "returned"
        assert cluster.dead() == 0
        assert waiting(cluster) == []


def test_who_joins_ends_as_the_run_that_it_has_met(tmp_path: Path) -> None:
    """It is called at that one's end, and runs no body."""
    gate = tmp_path / "gate"
    join = Singleton(by="key", on_conflict="join", ttl=3)
    with Cluster(tmp_path, env=ENV) as cluster:
        cluster.start()
        work = cluster.actors.work
        messages = [work.send_with_options(args=("joined", 0, str(gate)), singleton=join)]
        until(cluster.log.runs, what="the first run")
        messages += [work.send_with_options(args=("joined",), singleton=join) for _ in range(3)]
        until(lambda: len(waiting(cluster)) == 3, what="those who join")
        gate.touch()

        assert [cluster.result(message) for message in messages] == ["joined"] * 4
        assert len(cluster.log.runs()) == 1


@pytest.mark.timeout(360)  # RabbitMQ may need long to start
def test_on_rabbitmq_the_line_goes_on_after_a_kill(tmp_path: Path) -> None:
    """In order, each confirmed before it leaves the line; of a dead worker's call the sweep makes another."""
    gate = tmp_path / "gate"
    with RabbitServer() as rabbit, RabbitCluster(tmp_path, rabbit, env=ENV) as cluster:
        (first,) = cluster.start()
        killed = send(cluster, "rabbit", 0, str(gate))
        until(cluster.log.runs, what="the first run")
        messages = stand(cluster, "rabbit", 8, 0.05)
        cluster.start()
        first.kill()
        gate.touch()
        assert [cluster.result(message) for message in [*messages, killed]] == ["rabbit"] * 9

        runs = cluster.log.runs()
        ids = [message.message_id for message in messages]
        assert [run.run for run in runs if run.run != killed.message_id] == ids
        assert not overlaps(runs)
