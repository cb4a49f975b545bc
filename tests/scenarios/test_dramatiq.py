"""Scenarios 131 to 146: troubles of Dramatiq's users with locks around actors, on real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from dramatiq import group
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import ResultFailure

from singleflight import Singleton
from singleflight.dramatiq import Duplicate, SingletonActor, install
from tests.support.bodylog import of_key, overlaps, starts
from tests.support.dramatiq_nodes import Cluster
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three workers of two threads that most scenarios share; each has its own keys."""
    with Cluster(tmp_path_factory.mktemp("dramatiq")) as cluster:
        cluster.start(3, threads=2)
        yield cluster
        assert not cluster.endless()


@pytest.mark.parametrize("form", ["send", "send_with_options"])
def test_scenario_131_the_option_in_the_decorator_holds_for_every_form_of_sending(
    cluster: Cluster, gate: Path, form: str
) -> None:
    """Five messages to @actor(singleton=True), sent either way: one start, four are skipped."""
    nightly = cluster.actors.nightly
    send = nightly.send if form == "send" else lambda *args: nightly.send_with_options(args=args)
    key = f"decorated-{form}"
    messages = [send(0, key, str(gate)) for _ in range(5)]
    until(lambda: cluster.told(messages) == {"skipped": 4}, what="four skipped messages")
    gate.touch()
    until(cluster.idle, what="the end of the run")

    assert len(of_key(cluster.log.runs(), key)) == 1


def test_scenario_131_an_actor_before_the_middleware_is_told_which_option_is_unknown() -> None:
    """The order matters, and Dramatiq itself says what is missing."""
    broker = StubBroker(middleware=[])

    with pytest.raises(ValueError, match=r"options are undefined: singleton"):
        dramatiq.actor(broker=broker, actor_name="early", singleton=True)(lambda: None)


def test_scenario_132_a_duplicate_is_not_sent_and_the_sender_gets_a_message() -> None:
    """send() raises nothing, marks the duplicate, and who watches the broker is told of one message."""

    class Observer(dramatiq.Middleware):
        told = 0

        def after_enqueue(self, *_: Any) -> None:
            self.told += 1

    broker = StubBroker(middleware=[observer := Observer()])
    install(broker)
    singleton = Singleton(at_most_one="waiting_or_running")
    actor = dramatiq.actor(broker=broker, actor_name="a", actor_class=SingletonActor, singleton=singleton)(
        lambda: None
    )
    messages = [actor.send() for _ in range(3)]

    assert [isinstance(message, Duplicate) for message in messages] == [False, True, True]
    assert len({message.message_id for message in messages}) == 1
    assert observer.told == 1


def test_scenario_134_waiting_for_the_lease_uses_up_no_retries(cluster: Cluster, gate: Path) -> None:
    """Five deferred messages with max_retries=2 outlast a long holder, run in turn, and none is dead."""
    send = cluster.actors.work.send_with_options
    dead, options = cluster.dead(), Singleton(by="key", on_conflict="defer", ttl=1)
    send(args=("budget", 0, str(gate)), singleton=options)
    until(lambda: of_key(cluster.log.runs(), "budget"), what="the holder")
    waiting = [send(args=("budget",), singleton=options, max_retries=2) for _ in range(5)]
    for message in waiting:
        until(lambda id_=message.message_id: cluster.logs().count(f"{id_} deferred") > 3, 60, "four waits")
    gate.touch()
    until(cluster.idle, 60, "the end of all messages")

    runs = of_key(cluster.log.runs(), "budget")
    assert len(runs) == 6
    assert not overlaps(runs)
    assert {run.attempt for run in runs} == {0}
    assert cluster.dead() == dead


def test_scenario_137_a_killed_worker_blocks_nobody_for_longer_than_the_ttl(
    tmp_path: Path, gate: Path
) -> None:
    """Kill -9 during a run, start again: the redelivered message runs, and is not dropped as a duplicate."""
    with Cluster(tmp_path) as cluster:
        (first,) = cluster.start()
        message = cluster.actors.work.send_with_options(
            args=("killed", 0, str(gate)), singleton=Singleton(by="key", ttl=4)
        )
        until(cluster.log.runs, what="the run")
        first.kill()
        gate.touch()
        cluster.start()

        assert cluster.result(message) == "killed"
        runs = starts(cluster.log.runs(), message.message_id)
        assert len(runs) == 2
        assert not overlaps(runs)


def test_scenario_139_a_group_with_a_skipped_member_completes_once(cluster: Cluster, gate: Path) -> None:
    """The callback of a group with a duplicate comes once, wait() ends, and no barrier stays for ever."""
    work, after = cluster.actors.work, cluster.actors.after
    same = {"args": ("member", 0, str(gate)), "singleton": Singleton(by="key")}
    members = [work.message_with_options(**same) for _ in range(2)]
    many = group([*members, work.message("other")], broker=cluster.actors.broker)
    many.add_completion_callback(after.message(None, "member-callback"))
    many.run()
    until(lambda: cluster.told(members) == {"skipped": 1}, what="the skipped member")
    gate.touch()
    until(lambda: of_key(cluster.log.runs(), "member-callback"), what="the callback")
    with pytest.raises(ResultFailure, match="Skipped"):
        many.wait(timeout=10_000)
    until(cluster.idle, what="the end of all messages")

    assert len(of_key(cluster.log.runs(), "member-callback")) == 1
    results = ("dramatiq:", "singleflight:")  # queues are the broker's, leases are judged elsewhere
    others = [key for key in cluster.client.scan_iter() if not key.decode().startswith(results)]
    assert [key for key in others if cluster.client.ttl(key) == -1] == []


def test_scenario_142_under_gevent_sleeping_runs_keep_their_lease(tmp_path: Path) -> None:
    """Runs of three ttls that sleep are renewed by a greenlet, and the log says what blocking ones risk."""
    options = Singleton(by="key", on_conflict="defer", ttl=1.5)
    with Cluster(tmp_path) as cluster:
        (worker,) = cluster.start(threads=50, gevent=True)
        send = cluster.actors.work.send_with_options
        messages = [send(args=("greenlet", 4.5), singleton=options) for _ in range(2)]
        assert [cluster.result(message) for message in messages] == ["greenlet"] * 2

        runs = of_key(cluster.log.runs(), "greenlet")
        assert len(runs) == 2
        assert not overlaps(runs)
        until(lambda: "threads are greenlets in this process" in worker.log(), what="the warning")
        assert "run lost" not in worker.log()


def test_scenario_144_messages_faster_than_their_runs_do_not_pile_up(cluster: Cluster) -> None:
    """Messages that come faster than a run takes: never two at once, the others are skipped, none is left."""
    messages = []
    for _ in range(20):
        messages.append(cluster.actors.nightly.send(1.0, "frequent"))
        seen = len(messages)
        until(lambda n=seen: _answered(cluster, n, messages), what="the message to run or be skipped")
    until(cluster.idle, what="the end of all messages")

    runs = of_key(cluster.log.runs(), "frequent")
    assert not overlaps(runs)
    assert 1 <= len(runs) < 20


def _answered(cluster: Cluster, count: int, messages: list[Any]) -> bool:
    skipped = cluster.told(messages).get("skipped", 0)
    return skipped + len(of_key(cluster.log.runs(), "frequent")) == count


def test_scenario_146_the_stub_broker_needs_no_store_and_joins(tmp_path: Path) -> None:
    """Unit tests work offline: of three messages one starts, and join() does not hang on the others."""
    broker = StubBroker(middleware=[])
    install(broker)
    runs: list[int] = []
    actor = dramatiq.actor(broker=broker, actor_name="a", singleton=Singleton(window=60))(
        lambda: runs.append(1)
    )
    for _ in range(3):
        actor.send()
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    broker.join("default", timeout=10_000)
    worker.join()
    worker.stop(timeout=5_000)

    assert runs == [1]
    assert not list(tmp_path.iterdir())
