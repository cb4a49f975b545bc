"""Actors whose duplicates are recognised when they are sent: the opt-in actor class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker

from singleflight import Singleton, StoreUnavailable
from singleflight.dramatiq import Conflict, Duplicate, SingletonActor, install
from singleflight.stores.memory import MemoryStore
from tests.support.bodylog import of_key, overlaps
from tests.support.dramatiq_nodes import Cluster
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that all tests of this file share; each test has its own keys."""
    with Cluster(tmp_path_factory.mktemp("dramatiq")) as cluster:
        cluster.start(2)
        yield cluster
        assert not cluster.endless()


def test_a_duplicate_of_a_waiting_message_is_not_sent_and_shares_its_result(cluster: Cluster) -> None:
    """Of five sends before the delay is over one message exists, and all five get its result."""
    send = cluster.actors.either.send_with_options
    messages = [send(args=("waiting",), delay=500) for _ in range(5)]

    assert {message.message_id for message in messages} == {messages[0].message_id}
    assert [isinstance(message, Duplicate) for message in messages] == [False] + 4 * [True]
    assert [cluster.result(message) for message in messages] == ["waiting"] * 5
    assert len(of_key(cluster.log.runs(), "waiting")) == 1


def test_a_duplicate_of_a_running_message_is_not_sent(cluster: Cluster, gate: Path) -> None:
    """Under waiting_or_running a send during the run returns the running message; afterwards it is sent."""
    send = cluster.actors.either.send
    first = send("running", 0, str(gate))
    until(lambda: of_key(cluster.log.runs(), "running"), what="the run")
    during = send("running")
    gate.touch()
    assert cluster.result(during) == "running"
    afterwards = send("running")

    assert during.message_id == first.message_id
    assert not isinstance(afterwards, Duplicate)
    assert cluster.result(afterwards) == "running"
    assert len(of_key(cluster.log.runs(), "running")) == 2


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "join"])
def test_who_has_read_a_result_sends_at_once(cluster: Cluster, on_conflict: Any) -> None:
    """A message whose result is out is in nobody's way, although its lease is given back a moment later."""
    key = f"again-{on_conflict}"
    word = Singleton(by="key", at_most_one="waiting_or_running", on_conflict=on_conflict)
    results = cluster.actors.broker.get_results_backend()
    for count in range(1, 41):
        message = cluster.actors.either.send_with_options(args=(key,), singleton=word)
        assert not isinstance(message, Duplicate)
        assert message.get_result(backend=results, block=True, timeout=4_000) == key
        assert len(of_key(cluster.log.runs(), key)) == count


def test_an_actor_that_sends_itself_is_in_nobodys_way(cluster: Cluster) -> None:
    """Under waiting_or_running a body may send its own successor: it runs after it."""
    cluster.actors.chained.send(3)
    until(lambda: len(of_key(cluster.log.runs(), "chained")) == 4, what="three successors")

    assert not overlaps(of_key(cluster.log.runs(), "chained"))


def test_one_runs_and_one_waits(cluster: Cluster, gate: Path) -> None:
    """Under waiting_and_running the second of ten sends waits and runs later, the others are not sent."""
    send = cluster.actors.both.send
    send("both", 0, str(gate))
    until(lambda: of_key(cluster.log.runs(), "both"), what="the run")
    clicks = [send("both") for _ in range(9)]
    gate.touch()
    assert [cluster.result(click) for click in clicks] == ["both"] * 9

    runs = of_key(cluster.log.runs(), "both")
    assert len({click.message_id for click in clicks}) == 1
    assert len(runs) == 2
    assert not overlaps(runs)


def test_a_retry_keeps_its_place(cluster: Cluster) -> None:
    """A message that waits for its retry is still the one that waits: duplicates get its result."""
    send = cluster.actors.either.send_with_options
    first = send(args=("again", 0, "", 1), min_backoff=1_500, max_backoff=3_000)
    until(lambda: any(run.how for run in of_key(cluster.log.runs(), "again")), what="the failed attempt")
    until(lambda: not cluster.client.hlen("dramatiq:default.msgs"), what="its acknowledgement")
    duplicate = send(args=("again",))

    assert duplicate.message_id == first.message_id
    assert cluster.result(duplicate) == "again"
    assert len(of_key(cluster.log.runs(), "again")) == 2


class Away(MemoryStore):
    """A store whose publishers cannot reach it."""

    def peek(self, key: str) -> Any:
        """Give no answer."""
        raise StoreUnavailable(f"nobody knows {key[:4]}")

    queue = peek


@pytest.mark.parametrize(("word", "sent"), [("defer", 2), ("raise", 0)])
def test_a_store_that_is_away_does_not_stop_a_publisher_unless_told_to(word: Any, sent: int) -> None:
    """Built in: everything is sent and the worker decides; under raise the caller is told."""
    broker = StubBroker(middleware=[])
    install(broker, Away())
    options = Singleton(at_most_one="waiting_or_running", on_store_error=word)
    actor = dramatiq.actor(broker=broker, actor_class=SingletonActor, actor_name="a", singleton=options)(
        lambda: None
    )
    errors = []
    for _ in range(2):
        try:
            actor.send()
        except StoreUnavailable as error:
            errors.append(error)

    assert broker.queues["default"].qsize() == sent
    assert len(errors) == 2 - sent


def test_a_conflict_can_be_raised_to_the_publisher() -> None:
    """Under raise the second send raises Conflict, and nothing is sent."""
    broker = StubBroker(middleware=[])
    install(broker, MemoryStore())
    options = Singleton(at_most_one="waiting_or_running", on_conflict="raise")
    actor = dramatiq.actor(broker=broker, actor_class=SingletonActor, actor_name="a", singleton=options)(
        lambda: None
    )
    actor.send()

    with pytest.raises(Conflict, match="queued"):
        actor.send()
    assert broker.queues["default"].qsize() == 1


def test_messages_that_others_depend_on_are_always_sent() -> None:
    """A message with callbacks is sent although one waits: nobody else would call them."""
    broker = StubBroker(middleware=[dramatiq.middleware.Callbacks()])
    install(broker, MemoryStore())
    options = Singleton(at_most_one="waiting_or_running")
    actor = dramatiq.actor(broker=broker, actor_class=SingletonActor, actor_name="a", singleton=options)(
        lambda: None
    )
    actor.send()

    actor.send_with_options(on_success="a")

    assert broker.queues["default"].qsize() == 2


def test_without_the_actor_class_the_option_is_refused() -> None:
    """A plain actor sends without looking, so it cannot promise what the option says."""
    broker = StubBroker(middleware=[])
    install(broker, MemoryStore())

    with pytest.raises(ValueError, match="actor_class=SingletonActor"):
        dramatiq.actor(broker=broker, actor_name="a", singleton=Singleton(at_most_one="waiting_or_running"))(
            lambda: None
        )


def test_a_message_that_is_sent_again_runs_again(cluster: Cluster) -> None:
    """The same message object, or another one with its id, is a new call each time it is enqueued."""
    broker, work = cluster.actors.broker, cluster.actors.work
    message = work.message_with_options(args=("resent",), singleton=Singleton(by="key"))
    fixed = message.copy(args=("fixed",), message_id="fixed-id")
    for count in range(1, 4):
        broker.enqueue(message)
        fixed = broker.enqueue(fixed if count == 1 else fixed.copy(), delay=10 if count == 2 else None)
        until(lambda count=count: _runs(cluster, "resent", "fixed") == [count, count], what=f"{count} runs")
        until(cluster.idle, what="the end of the messages")

    assert not cluster.told([message, fixed]).get("dropped")


def test_a_pipeline_that_is_run_again_runs_again_to_its_end(cluster: Cluster) -> None:
    """All of its messages have the same ids each time."""
    work, word = cluster.actors.work, Singleton(by="key")
    first = work.message_with_options(args=("pipe-1",), singleton=word, pipe_ignore=True)
    second = work.message_with_options(args=("pipe-2",), singleton=word, pipe_ignore=True)
    last = cluster.actors.after.message(key="pipe-end")
    pipe = dramatiq.pipeline([first, second, last], broker=cluster.actors.broker)
    for count in range(1, 4):
        pipe.run()
        until(lambda count=count: _runs(cluster, "pipe-end") == [count], what=f"end {count}")
        until(cluster.idle, what="the end of the messages")

    assert _runs(cluster, "pipe-1", "pipe-2") == [3, 3]


def test_a_body_that_sends_its_own_message_again_goes_on(cluster: Cluster) -> None:
    """It is a new call, though nothing in the message has changed; its retries are none."""
    message = cluster.actors.again.message_with_options(args=("rounds", 3), singleton=Singleton(by=()))
    cluster.actors.broker.enqueue(message)

    until(lambda: _runs(cluster, "rounds") == [6], what="three rounds, each of which fails once")
    until(cluster.idle, what="the end of the messages")
    assert _runs(cluster, "rounds") == [6]


def test_a_message_without_our_mark_is_known_by_its_id(cluster: Cluster) -> None:
    """A producer without the middleware that sends one message twice sends a copy, delayed or not."""
    message = cluster.actors.nightly.message(key="foreign")
    plain = RedisBroker(url=cluster.server.url, middleware=[])
    for delay in (None, 10, None):
        plain.enqueue(message, delay=delay)
        until(lambda: _runs(cluster, "foreign") == [1], what="the run")
        until(cluster.idle, what="the end of the message")

    plain.close()
    assert _runs(cluster, "foreign") == [1]


def _runs(cluster: Cluster, *keys: str) -> list[int]:
    return [len(of_key(cluster.log.runs(), key)) for key in keys]


def test_a_dead_letter_that_is_enqueued_again_runs_again(cluster: Cluster) -> None:
    """Whoever enqueues it by hand wants it to run, with whatever its options say of its retries."""
    message = cluster.actors.work.message_with_options(
        args=("dead", 0, "", 9), max_retries=0, singleton=Singleton(by="key")
    )
    sent = cluster.actors.broker.enqueue(message)
    until(lambda: cluster.dead() and cluster.idle(), what="its end")
    cluster.actors.broker.enqueue(sent.copy(options={"retries": 1, "max_retries": 0}))

    until(lambda: _runs(cluster, "dead") == [2], what="the second run")
