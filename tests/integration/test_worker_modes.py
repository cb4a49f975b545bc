"""What each mode does to a crowd of duplicates, on two real workers of four processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import TaskRevokedError

from singleflight import Conflict, Singleton, Skipped
from tests.support.bodylog import overlaps, starts
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers of four processes for all tests of this file."""
    with Rig(tmp_path_factory.mktemp("modes")) as rig:
        yield rig.start(2, concurrency=4)
        assert not rig.endless_keys()


def test_of_two_hundred_publishes_none_overlap_and_all_others_are_skipped(rig: Rig) -> None:
    """In skip mode nothing overlaps; a run that does not start is REVOKED, and its get() raises Skipped."""
    results = [rig.send("probe", "crowd", seconds=0.5) for _ in range(200)]
    states = rig.states(results)

    runs = rig.runs("crowd")
    ran = {run.run for run in runs}
    assert not overlaps(runs)
    assert len(ran) == len(runs) < 50
    for result, state in zip(results, states, strict=True):
        assert state == ("SUCCESS" if result.id in ran else "REVOKED")
    skipped = next(result for result in results if result.id not in ran)
    with pytest.raises(Skipped, match="duplicate of run") as caught:
        skipped.get(timeout=30)
    assert isinstance(caught.value, TaskRevokedError)


def test_twenty_deferred_runs_run_one_after_the_other(rig: Rig) -> None:
    """In defer mode each of 20 publishes runs, one at a time, and no deferral counts as a retry."""
    options = {"singleton": Singleton(on_conflict="defer")}
    results = [rig.send("probe", "queue", options, seconds=0.5) for _ in range(20)]
    states = rig.states(results, timeout=110)

    runs = rig.runs("queue")
    assert states == ["SUCCESS"] * 20
    assert sorted(run.run for run in runs) == sorted(result.id for result in results)
    assert not overlaps(runs)
    assert {run.attempt for run in runs} == {0}


def test_runs_of_different_accounts_overlap_and_of_one_account_never(rig: Rig) -> None:
    """`by` parts the work: 200 publishes over 20 keys overlap between keys and never within one."""
    results = [rig.send("probe", f"account-{n % 20}", seconds=0.3) for n in range(200)]
    rig.states(results)

    runs = [run for run in rig.log.runs() if run.key.startswith("account-")]
    together = any(
        one.started < other.started < one.last_seen and one.key != other.key for one in runs for other in runs
    )
    assert not overlaps(runs)
    assert {run.key for run in runs} == {f"account-{n}" for n in range(20)}
    assert together


def test_ten_clicks_that_coalesce_run_exactly_twice(rig: Rig) -> None:
    """While the first click runs, one of the nine others waits and runs after it; the rest are skipped."""
    options = {"singleton": Singleton(on_conflict="coalesce")}
    first = rig.send("probe", "clicks", options, seconds=1.5)
    rig.wait_start("clicks")
    others = [rig.send("probe", "clicks", options, seconds=0.2) for _ in range(9)]
    states = rig.states([first, *others])

    runs = rig.runs("clicks")
    assert states[0] == "SUCCESS"
    assert sorted(states[1:]) == ["REVOKED"] * 8 + ["SUCCESS"]
    assert len(runs) == 2
    assert not overlaps(runs)


def test_a_conflict_fails_the_run_when_told_to_raise(rig: Rig) -> None:
    """With on_conflict="raise" a duplicate ends as FAILURE with Conflict, which says who is in the way."""
    gate = rig.folder / "raise-gate"
    first = rig.send("probe", "raise", gate=str(gate))
    rig.wait_start("raise")
    duplicate = rig.send("probe", "raise", {"singleton": Singleton(on_conflict="raise")})

    with pytest.raises(Conflict, match=first.id):
        duplicate.get(timeout=30)
    gate.touch()
    assert duplicate.state == "FAILURE"
    assert first.get(timeout=30) == first.id
    assert len(rig.runs("raise")) == 1


def test_a_waiting_run_gives_up_when_it_has_waited_long_enough(rig: Rig) -> None:
    """With give_up_after a deferred run is skipped once that time is over, and the log warns."""
    first = rig.send("probe", "patience", seconds=4.0)
    rig.wait_start("patience")
    began = time.monotonic()
    options = {"singleton": Singleton(on_conflict="defer", give_up_after=1)}
    duplicate = rig.send("probe", "patience", options)

    with pytest.raises(Skipped):
        duplicate.get(timeout=30)
    assert time.monotonic() - began >= 1
    assert first.get(timeout=30) == first.id
    assert not starts(rig.log.runs(), duplicate.id)
    assert rig.said(f"{duplicate.id} gave up")


def test_a_skipped_run_returns_the_skip_result_where_there_is_one(rig: Rig) -> None:
    """With skip_result a duplicate ends as SUCCESS with that value."""
    gate = rig.folder / "value-gate"
    first = rig.send("probe", "value", gate=str(gate))
    rig.wait_start("value")
    duplicate = rig.send("probe", "value", {"singleton": Singleton(skip_result={"skipped": True})})

    assert duplicate.get(timeout=30) == {"skipped": True}
    gate.touch()
    assert first.get(timeout=30) == first.id
    assert len(rig.runs("value")) == 1


def test_a_skipped_run_stores_nothing_where_results_are_ignored(rig: Rig) -> None:
    """ignore_result holds for skips too: the run leaves the queue and no state is written."""
    gate = rig.folder / "ignored-gate"
    first = rig.send("probe", "ignored", gate=str(gate))
    rig.wait_start("ignored")
    duplicate = rig.send("probe", "ignored", {"ignore_result": True})

    until(lambda: rig.said(f"{duplicate.id} skipped"), 30, "the skip")
    gate.touch()
    assert first.get(timeout=30) == first.id
    assert duplicate.state == "PENDING"


def test_a_run_without_singleton_by_call_overlaps(rig: Rig) -> None:
    """`singleton=False` of one call takes no lease at all, and needs none."""
    first = rig.send("probe", "free", seconds=1.0)
    rig.wait_start("free")
    free = rig.send("probe", "free", {"singleton": False}, then="lease")

    assert free.get(timeout=30) is None
    assert first.get(timeout=30) == first.id


def test_options_of_a_call_go_with_its_retries_and_deferrals(rig: Rig) -> None:
    """A call's own options still hold after it was deferred, and after it retried."""
    first = rig.send("probe", "carried", seconds=1.5)
    rig.wait_start("carried")
    # Without its own on_conflict, this run would be skipped; with its own by, it does not meet `first`.
    options = {"singleton": Singleton(on_conflict="defer", by=())}
    other = rig.send("probe", "carried", options, then="retry-later")
    waiting = rig.send("probe", "carried", {"singleton": Singleton(on_conflict="defer")}, then="retry")

    assert other.get(timeout=30) == other.id
    assert waiting.get(timeout=30) == waiting.id
    assert first.get(timeout=30) == first.id
    assert [run.attempt for run in starts(rig.log.runs(), other.id)] == [0, 1, 2]
    assert [run.attempt for run in starts(rig.log.runs(), waiting.id)] == [0, 1, 2]
    assert not overlaps([run for run in rig.runs("carried") if run.run != other.id])


def test_a_publish_right_after_get_is_never_taken_for_a_duplicate(rig: Rig) -> None:
    """A result is out a moment before its lease is released; who has read it finds the key free."""
    for _ in range(8):
        result = rig.send("probe", "sequence")
        assert result.get(timeout=30) == result.id

    assert len(rig.runs("sequence")) == 8
