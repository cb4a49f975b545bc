"""Singleton actors on real workers: three processes of eight threads, one Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight import Singleton
from tests.support.bodylog import of_key, overlaps
from tests.support.dramatiq_nodes import Cluster
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three workers that all tests of this file share; each test has its own keys."""
    with Cluster(tmp_path_factory.mktemp("dramatiq")) as cluster:
        cluster.start(3)
        yield cluster
        assert not cluster.endless()


def test_of_many_messages_to_a_singleton_no_two_run_at_once(cluster: Cluster) -> None:
    """Of 200 messages those that meet a running one are skipped, visibly, and no two bodies overlap."""
    messages = [cluster.actors.nightly.send(0.05) for _ in range(200)]
    until(cluster.idle, 60, "the end of all messages")

    runs = of_key(cluster.log.runs(), "nightly")
    skipped = cluster.logs().count("skipped, key nightly:")
    assert not overlaps(runs)
    assert len({run.run for run in runs}) == len(runs)
    assert len(runs) + skipped == len(messages)
    assert skipped > 0
    assert all(run.fence for run in runs)


def test_deferred_messages_all_run_one_after_the_other(cluster: Cluster) -> None:
    """Twenty messages that may not run at once all run, each once, and none of it counts as a retry."""
    options = Singleton(by="key", on_conflict="defer", ttl=2)
    work = cluster.actors.work
    sent = [work.send_with_options(args=("deferred", 0.05), singleton=options) for _ in range(20)]
    until(lambda: len(of_key(cluster.log.runs(), "deferred")) == 20, 90, "twenty runs")
    until(cluster.idle, 30, "the end of all messages")

    runs = of_key(cluster.log.runs(), "deferred")
    assert not overlaps(runs)
    assert sorted(run.run for run in runs) == sorted(message.message_id for message in sent)
    assert {run.attempt for run in runs} == {0}
    assert cluster.dead() == 0
