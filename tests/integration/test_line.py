"""Runs that wait in the line of their key: called in order, at once, and whoever is killed meanwhile."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from singleflight import Singleton
from tests.support.bodylog import overlaps
from tests.support.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bodylog import Run

DEFER = {"singleton": Singleton(on_conflict="defer")}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers of two processes for all tests of this file."""
    conf = {"singleflight_waiting": "line"}
    with Rig(tmp_path_factory.mktemp("line"), conf=conf) as rig:
        yield rig.start(2, concurrency=2)
        assert not [key for key in rig.endless_keys() if ":home:" not in key]


def gaps(runs: list[Run]) -> list[float]:
    """Return the seconds from each body's end to the next one's start."""
    return [after.started - before.last_seen for before, after in pairwise(runs)]


def test_who_came_first_runs_first_and_the_next_one_starts_at_once(rig: Rig) -> None:
    """Deferred runs of one key start in the order of their arrival, each soon after the one before."""
    results = [rig.send("late", "order", DEFER, seconds=0.5)]
    rig.wait_start("order")
    for _ in range(8):
        results.append(rig.send("late", "order", DEFER, seconds=0.05))
        rig.until_waiting(results[-1].id)

    assert rig.states(results) == ["SUCCESS"] * 9
    runs = rig.runs("order")
    assert [run.run for run in runs] == [result.id for result in results]
    assert not overlaps(runs)
    assert sorted(gaps(runs))[len(runs) // 2] < 1
