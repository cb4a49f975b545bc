"""Runs that come back: retries, rejections, replacements, children, and calls that are no deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight import Singleton
from tests.support.bodylog import overlaps, starts
from tests.support.rig import Rig
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = {"singleton": Singleton(ttl=60)}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers of four processes for all tests of this file."""
    with Rig(tmp_path_factory.mktemp("returns")) as rig:
        yield rig.start(2, concurrency=4)
        assert not rig.endless_keys()


def test_an_immediate_retry_waits_for_its_own_release_only(rig: Rig) -> None:
    """Published before its own lease is free, retry(countdown=0) waits briefly; each attempt runs once."""
    result = rig.send("probe", "retry", LONG, then="retry")

    assert result.get(timeout=30) == result.id
    assert [run.attempt for run in rig.runs("retry")] == [0, 1, 2]
    until(lambda: rig.final(result.id), what="the final release")


@pytest.mark.parametrize("how", ["unthrown", "swallowed"])
def test_a_retry_runs_although_the_body_that_published_it_returned(rig: Rig, how: str) -> None:
    """After retry(throw=False), or when its exception is swallowed, the retry is no copy of an ended run."""
    key = f"retry-{how}"
    result = rig.send("probe", key, LONG, then=key)
    until(lambda: rig.final(result.id), 30, "the final release")

    assert [(run.run, run.attempt) for run in rig.wait_start(key, 2)] == [(result.id, 0), (result.id, 1)]
    assert not rig.said(f"{result.id} dropped")


def test_a_task_can_return_what_its_request_says(rig: Rig) -> None:
    """Nothing of ours is among the properties: no serializer has to write it, and no result tells a token."""
    options = {**LONG, "app_id": "1234", "headers": {"tenant": "a"}}
    told = rig.send("probe", "request", options, then="return-request").get(timeout=30)

    assert told["properties"]["app_id"] == "1234"
    assert not [name for name in told["properties"] if "singleflight" in name]
    assert told["headers"]["tenant"] == "a"


def test_an_ignored_run_frees_its_key(rig: Rig) -> None:
    """Ignore ends a delivery without a result; the key is free and the next run starts."""
    ignored = rig.send("probe", "ignore", LONG, then="ignore")
    rig.wait_start("ignore")
    until(lambda: not rig.held(ignored.id), SOON, "the release")

    after = rig.send("probe", "ignore", LONG)
    assert after.get(timeout=30) == after.id


def test_a_requeued_run_starts_again(rig: Rig) -> None:
    """Reject(requeue=True) is no end: the redelivered message runs, and is no duplicate."""
    result = rig.send("late", "requeue", LONG, then="first-requeue")

    assert result.get(timeout=30) == result.id
    assert [run.run for run in rig.runs("requeue")] == [result.id, result.id]


def test_a_rejected_run_frees_its_key(rig: Rig) -> None:
    """Reject(requeue=False) is the end of the run, and of its lease."""
    rejected = rig.send("late", "reject", LONG, then="reject")
    rig.wait_start("reject")
    until(lambda: not rig.held(rejected.id), SOON, "the release")

    after = rig.send("late", "reject", LONG)
    assert after.get(timeout=30) == after.id


def test_a_replaced_run_goes_on_under_the_same_id(rig: Rig) -> None:
    """self.replace() with the same key neither blocks itself nor is dropped as a copy; a late copy is."""
    result = rig.send("late", "replace", LONG, then="replace")
    assert result.get(timeout=30) == result.id
    until(lambda: rig.final(result.id), what="the final release")
    rig.copy(rig.app.tasks["late"].s("replace", then="replace").set(**LONG), result.id)

    until(lambda: rig.said(f"{result.id} dropped"), what="the drop of the copy")
    assert [run.run for run in rig.runs("replace")] == [result.id, result.id]


def test_a_child_of_the_holder_waits_for_it(rig: Rig) -> None:
    """What a run publishes under its own key is work to come, not a duplicate."""
    parent = rig.send("probe", "family", LONG, then="child")
    child = parent.get(timeout=30)

    assert rig.app.AsyncResult(child).get(timeout=30) == child
    assert [run.run for run in rig.runs("family")] == [parent.id, child]


def test_the_next_step_of_a_chain_with_the_same_key_runs(rig: Rig) -> None:
    """Celery publishes the next step before the first one's lease is free: it waits."""
    probe = rig.app.tasks["probe"]
    tail = (probe.si("steps") | probe.si("steps") | probe.si("steps")).apply_async()

    assert tail.get(timeout=30) == tail.id
    assert len(rig.runs("steps")) == 3
    assert not overlaps(rig.runs("steps"))


def test_a_nested_call_does_not_meet_its_own_lease(rig: Rig) -> None:
    """A task that calls itself as a function just runs, and its request is untouched afterwards."""
    result = rig.send("probe", "nested", LONG, then="nested")

    # Celery gives the inner call an empty request, or from 5.5 on a copy of the outer one.
    assert result.get(timeout=30) in ([result.id, True], [None, True])
    assert len(rig.runs("nested")) == 2


def test_apply_inside_a_run_does_not_meet_its_lease(rig: Rig) -> None:
    """apply() of the same task and key inside its body runs there and then."""
    result = rig.send("probe", "apply", LONG, then="apply")

    assert isinstance(result.get(timeout=30), str)
    assert len(rig.runs("apply")) == 2


def test_map_and_starmap_call_plainly(rig: Rig) -> None:
    """map() and starmap() call the function inside one message of Celery's: they take no lease."""
    probe = rig.app.tasks["probe"]
    before = set(rig.records())

    assert probe.map(["mapped"] * 3).apply_async().get(timeout=30) == [None] * 3
    assert probe.starmap([("mapped",)] * 2).apply_async().get(timeout=30) == [None] * 2
    assert len(rig.runs("mapped")) == 5
    assert set(rig.records()) == before


def test_started_is_stored_after_the_grant_only(rig: Rig) -> None:
    """With track_started a running run is STARTED, a skipped one is REVOKED and a waiting one PENDING."""
    gate = rig.folder / "tracked-gate"
    running = rig.send("tracked", "tracked", LONG, gate=str(gate))
    until(lambda: running.state == "STARTED", what="the state STARTED")
    skipped = rig.send("tracked", "tracked", LONG)
    waiting = rig.send("tracked", "tracked", {"singleton": Singleton(on_conflict="defer")})
    until(lambda: rig.said(f"{waiting.id} deferred"), what="the deferral")

    assert rig.states([skipped]) == ["REVOKED"]
    assert waiting.state == "PENDING"
    assert running.info["hostname"].startswith("worker")
    gate.touch()
    assert rig.states([running, waiting]) == ["SUCCESS", "SUCCESS"]


def test_before_start_is_called_once_a_run_really_starts(rig: Rig) -> None:
    """A task's own before_start and __call__ run inside the lease, for each granted delivery and no other."""
    first = rig.send("based", "based", seconds=1.0)
    rig.wait_start("based")
    duplicate = rig.send("based", "based")

    assert rig.states([first, duplicate]) == ["SUCCESS", "REVOKED"]
    assert first.get() == {"before": True, "called": True, "held": True}
    assert [run.run for run in rig.runs("before-based")] == [first.id]


def test_a_run_sees_its_own_lease(rig: Rig) -> None:
    """current_lease() in a body is held, and its fence grows from run to run."""
    leases = [rig.send("probe", "lease", then="lease").get(timeout=30) for _ in range(2)]

    assert [lease["held"] for lease in leases] == [True, True]
    assert leases[0]["fence"] < leases[1]["fence"]


def test_a_stream_of_fresh_runs_does_not_starve_a_waiting_one(rig: Rig) -> None:
    """A deferred run gets its turn although others are published all the time: it reserves the key."""
    rig.send("probe", "stream", seconds=0.4)
    rig.wait_start("stream")
    waiting = rig.send("probe", "stream", {"singleton": Singleton(on_conflict="defer")})
    until(
        lambda: rig.send("probe", "stream", seconds=0.4) and starts(rig.log.runs(), waiting.id),
        30, "the start of the waiting run", every=0.1,
    )  # fmt: skip

    assert waiting.get(timeout=30) == waiting.id
    assert not overlaps(rig.runs("stream"))
