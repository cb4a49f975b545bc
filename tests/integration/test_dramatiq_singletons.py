"""Singleton actors on real workers: three processes of eight threads, one Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from dramatiq import Message, group, pipeline
from dramatiq.results import ResultFailure

from singleflight import Singleton
from tests.support.bodylog import of_key, overlaps, starts
from tests.support.dramatiq_nodes import Cluster
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    assert not overlaps(runs)
    assert len({run.run for run in runs}) == len(runs) < 200
    skipped = 200 - len(runs)
    until(lambda: cluster.told(messages).get("skipped") == skipped, what="the log to tell of each skipped")
    # Whoever meets a run whose result is just out comes back a second later.
    assert set(cluster.told(messages)) <= {"skipped", "deferred"}
    assert all(run.fence for run in runs)


def test_deferred_messages_all_run_one_after_the_other(cluster: Cluster) -> None:
    """Twenty messages that may not run at once all run, each once, and none of it counts as a retry."""
    options = Singleton(by="key", on_conflict="defer", ttl=1)
    work = cluster.actors.work
    dead = cluster.dead()
    sent = [work.send_with_options(args=("deferred", 0.05), singleton=options) for _ in range(20)]
    until(lambda: len(of_key(cluster.log.runs(), "deferred")) == 20, 90, "twenty runs")
    until(cluster.idle, 30, "the end of all messages")

    runs = of_key(cluster.log.runs(), "deferred")
    assert not overlaps(runs)
    assert sorted(run.run for run in runs) == sorted(message.message_id for message in sent)
    assert {run.attempt for run in runs} == {0}
    assert cluster.dead() == dead


def test_ten_clicks_are_two_runs(cluster: Cluster, gate: Path) -> None:
    """Under coalesce one duplicate waits and runs once more after the running one; the others are skipped."""
    options = Singleton(by="key", on_conflict="coalesce", ttl=3)
    send = cluster.actors.work.send_with_options
    send(args=("clicks", 0, str(gate)), singleton=options)
    until(lambda: of_key(cluster.log.runs(), "clicks"), what="the first run")
    clicks = [send(args=("clicks",), singleton=options) for _ in range(9)]
    until(lambda: cluster.told(clicks) == {"skipped": 8, "deferred": 1}, what="what became of nine clicks")
    gate.touch()
    until(cluster.idle, 60, "the end of all messages")

    runs = of_key(cluster.log.runs(), "clicks")
    assert len(runs) == 2
    assert not overlaps(runs)


def test_a_group_with_skipped_members_completes_once(cluster: Cluster, gate: Path) -> None:
    """Of ten equal members one runs; the callback comes after it, once, and nobody waits in vain."""
    work, after = cluster.actors.work, cluster.actors.after
    options = {"singleton": Singleton(by="key")}
    members = [work.message_with_options(args=("grouped", 0, str(gate)), **options) for _ in range(10)]
    many = group(members, broker=cluster.actors.broker)
    many.add_completion_callback(after.message(None, "grouped-callback"))
    many.run()
    until(lambda: cluster.told(members) == {"skipped": 9}, what="nine skipped members")
    assert not of_key(cluster.log.runs(), "grouped-callback")
    gate.touch()
    until(lambda: of_key(cluster.log.runs(), "grouped-callback"), what="the callback")
    until(cluster.idle, 30, "the end of all messages")

    assert len(of_key(cluster.log.runs(), "grouped")) == 1
    assert len(of_key(cluster.log.runs(), "grouped-callback")) == 1
    endings = [_ending(cluster, member) for member in members]
    assert sorted(endings) == ["Skipped"] * 9 + ["grouped"]


def test_a_pipeline_stops_at_a_skipped_stage_and_its_waiter_is_told(cluster: Cluster, gate: Path) -> None:
    """A skipped stage feeds nothing into the next one, and whoever waits for the end gets the failure."""
    work, after = cluster.actors.work, cluster.actors.after
    options = Singleton(by="key")
    work.send_with_options(args=("piped", 0, str(gate)), singleton=options)
    until(lambda: of_key(cluster.log.runs(), "piped"), what="the run in the way")
    flow = work.message_with_options(args=("piped",), singleton=options) | after.message("piped-after")
    flow = pipeline(flow.messages, broker=cluster.actors.broker).run()
    endings = [_ending(cluster, message) for message in flow.messages]
    gate.touch()
    until(cluster.idle, 30, "the end of all messages")

    assert endings == ["Skipped", "Skipped"]
    assert not of_key(cluster.log.runs(), "piped-after")


def test_a_skip_result_goes_on_in_its_pipeline(cluster: Cluster, gate: Path) -> None:
    """With skip_result a skipped stage counts as one that returned this value."""
    work = cluster.actors.work
    work.send_with_options(args=("answered", 0, str(gate)), singleton=Singleton(by="key"))
    until(lambda: of_key(cluster.log.runs(), "answered"), what="the run in the way")
    skipped = work.message_with_options(
        args=("answered",), singleton=Singleton(by="key", skip_result="went-on")
    )
    flow = pipeline([skipped, work.message()], broker=cluster.actors.broker).run()
    endings = [_ending(cluster, message) for message in flow.messages]
    gate.touch()

    assert endings == ["went-on", "went-on"]
    assert len(of_key(cluster.log.runs(), "answered")) == 1
    assert len(of_key(cluster.log.runs(), "went-on")) == 1


def test_a_conflict_that_is_to_be_raised_is_not_retried(cluster: Cluster, gate: Path) -> None:
    """Under raise a duplicate fails with Conflict at once and goes to the dead letters."""
    send, options = cluster.actors.work.send_with_options, Singleton(by="key", on_conflict="raise")
    dead = cluster.dead()
    send(args=("raised", 0, str(gate)), singleton=options)
    until(lambda: of_key(cluster.log.runs(), "raised"), what="the run in the way")
    duplicate = send(args=("raised",), singleton=options)
    ending = _ending(cluster, duplicate)
    gate.touch()
    until(cluster.idle, 30, "the end of all messages")

    assert ending == "Conflict"
    assert len(of_key(cluster.log.runs(), "raised")) == 1
    assert cluster.dead() == dead + 1


def test_a_retry_is_never_skipped_and_blocks_nobody(cluster: Cluster, gate: Path) -> None:
    """The key is free between two attempts; a retry that meets another run waits, though its word is skip."""
    send, options = cluster.actors.work.send_with_options, Singleton(by="key", ttl=3)
    failing = send(args=("retried", 0, "", 1), singleton=options, min_backoff=1_500)
    until(lambda: starts(cluster.log.runs(), failing.message_id), what="the first attempt")
    other = send(args=("retried", 0, str(gate)), singleton=Singleton(by="key", ttl=3, on_conflict="defer"))
    until(lambda: starts(cluster.log.runs(), other.message_id), what="a run between the attempts")
    until(lambda: cluster.told([failing]) == {"deferred": 1}, what="the retry that waits")
    gate.touch()
    assert cluster.result(failing) == "retried"
    until(cluster.idle, 30, "the end of all messages")

    runs = of_key(cluster.log.runs(), "retried")
    assert not overlaps(runs)
    assert [run.attempt for run in starts(runs, failing.message_id)] == [0, 1]


def test_a_run_that_has_failed_for_good_frees_its_key(cluster: Cluster) -> None:
    """When all retries are used up the message is dead, and the next run starts at once."""
    send, options = cluster.actors.work.send_with_options, Singleton(by="key", ttl=60)
    failing = send(args=("hopeless", 0, "", 9), singleton=options, max_retries=1)
    assert _ending(cluster, failing) == "RuntimeError"
    until(cluster.idle, 30, "the end of the failing message")
    again = send(args=("hopeless",), singleton=options)

    assert cluster.result(again) == "hopeless"
    assert [run.attempt for run in starts(cluster.log.runs(), failing.message_id)] == [0, 1]


def test_a_deferred_run_gives_up_when_it_is_told_to(cluster: Cluster, gate: Path) -> None:
    """After give_up_after a waiting duplicate is skipped, and its waiter is told."""
    send = cluster.actors.work.send_with_options
    send(args=("patience", 0, str(gate)), singleton=Singleton(by="key"))
    until(lambda: of_key(cluster.log.runs(), "patience"), what="the run in the way")
    waiting = send(args=("patience",), singleton=Singleton(by="key", on_conflict="defer", give_up_after=0.5))
    ending = _ending(cluster, waiting)
    gate.touch()

    assert ending == "Skipped"
    until(lambda: cluster.told([waiting]).get("gave up") == 1, what="the log to say so")


def test_a_single_message_can_do_without_a_lease(cluster: Cluster, gate: Path) -> None:
    """singleton=False in one message lets it run beside the lease's holder, and takes none."""
    nightly = cluster.actors.nightly
    options = {"kwargs": {"key": "free", "gate": str(gate)}, "singleton": False}
    free = [nightly.send_with_options(**options) for _ in range(2)]
    until(lambda: len(of_key(cluster.log.runs(), "free")) == 2, what="two runs at once")
    gate.touch()
    until(cluster.idle, 30, "the end of all messages")

    runs = of_key(cluster.log.runs(), "free")
    assert len(overlaps(runs)) == 1
    assert {run.run for run in runs} == {message.message_id for message in free}
    assert {run.fence for run in runs} == {None}


def test_a_run_whose_lease_is_lost_is_aborted(cluster: Cluster, gate: Path) -> None:
    """Under on_lost="abort" a body whose lease ends with max_hold gets LeaseLost, and is retried."""
    send = cluster.actors.work.send_with_options
    options = Singleton(by="key", ttl=1, max_hold=1, on_lost="abort")
    message = send(args=("aborted", 0, str(gate)), singleton=options)
    until(lambda: any(run.how for run in of_key(cluster.log.runs(), "aborted")), what="the abort")
    gate.touch()
    assert cluster.result(message) == "aborted"

    runs = starts(cluster.log.runs(), message.message_id)
    assert [(run.attempt, run.how) for run in runs] == [(0, "LeaseLost"), (1, "returned")]
    assert not overlaps(runs)


def test_duplicates_that_join_get_the_result_of_the_one_run(cluster: Cluster, gate: Path) -> None:
    """Under join one of four runs, and all four have its result."""
    send, options = cluster.actors.work.send_with_options, Singleton(by="key", on_conflict="join", ttl=3)
    first = send(args=("joined", 0, str(gate)), singleton=options)
    until(lambda: of_key(cluster.log.runs(), "joined"), what="the run")
    others = [send(args=("joined",), singleton=options) for _ in range(3)]
    until(lambda: cluster.told(others) == {"deferred": 3}, what="three that wait for it")
    gate.touch()

    assert [cluster.result(message) for message in [first, *others]] == ["joined"] * 4
    assert len(of_key(cluster.log.runs(), "joined")) == 1


def test_duplicates_that_join_a_failing_run_fail_after_its_last_attempt(cluster: Cluster, gate: Path) -> None:
    """A run that will be retried is waited for; its failure is theirs, and they are not retried."""
    send, options = cluster.actors.work.send_with_options, Singleton(by="key", on_conflict="join", ttl=3)
    first = send(args=("bad", 0, str(gate), 9), singleton=options, max_retries=1, min_backoff=3_000)
    until(lambda: of_key(cluster.log.runs(), "bad"), what="the run")
    other = send(args=("bad",), singleton=options)
    until(lambda: cluster.told([other]) == {"deferred": 1}, what="the one that waits for it")
    gate.touch()

    assert [_ending(cluster, message) for message in (first, other)] == ["RuntimeError", "JoinedFailure"]
    assert [run.run for run in of_key(cluster.log.runs(), "bad")] == [first.message_id] * 2


def _ending(cluster: Cluster, message: Message[Any]) -> str:
    """Wait for a result; return it, or the name of the error that stands in its place."""
    try:
        return str(cluster.result(message))
    except ResultFailure as error:
        return error.orig_exc_type
