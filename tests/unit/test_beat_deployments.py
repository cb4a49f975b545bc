"""Replicas that read different schedules, as in a rolling deployment; on a clock that the test turns."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

from celery.schedules import crontab

from tests.support.replica import NOON, Place


def deployed(old: dict[str, Any], new: dict[str, Any], *, minutes: float = 10) -> Place:
    """Let old replicas run, then old and new ones, then new ones only, each for some minutes."""
    place = Place(old, NOON + timedelta(seconds=30))
    for _ in range(2):
        place.start()
    place.run(seconds=60 * minutes, step=1)
    place.schedule = new
    place.start()
    place.run(seconds=60 * minutes, step=1)
    place.start()
    place.replicas = place.replicas[2:]
    place.run(seconds=60 * minutes, step=1)
    return place


def minutes(place: Place, name: str) -> list[int]:
    """Return the minutes after noon at which an entry was sent."""
    return [int(seconds // 60) for seconds in place.times(name)]


def test_a_changed_crontab_is_sent_by_both_versions_and_what_they_share_once() -> None:
    """Each third minute, then each second: while both run, the minutes of both, and 12 and 18 once.

    10 is sent at 10:30, when the first replica comes that has it: after the last run at 9 it was missed.
    """
    place = deployed({"one": crontab("*/3")}, {"one": crontab("*/2")})

    assert minutes(place, "one") == [3, 6, 9, 10, 12, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30]
    assert len({one.task_id for one in place.posted}) == len(place.posted)


def test_a_changed_interval_is_sent_by_the_shorter_one_while_both_run() -> None:
    """From 60 s to 40 s, and back: never closer than the shorter one, never farther than the longer one."""
    for before, after in ((60.0, 40.0), (40.0, 60.0)):
        place = deployed({"one": before}, {"one": after})
        times = place.times("one")
        steps = [(at, round(later - at)) for at, later in pairwise(times)]

        assert {step for at, step in steps if at < 500} == {before}
        assert {step for at, step in steps if 750 < at < 1100} == {40}
        assert {step for at, step in steps if at > 1350} == {after}
        assert all(40 <= step <= 60 for _, step in steps)


def test_an_added_entry_a_removed_one_and_a_renamed_one() -> None:
    """Each is sent while a replica has it; one that was renamed is sent under both names meanwhile."""
    old = {"stays": crontab("*/2"), "goes": crontab("*/2"), "before": crontab("*/5")}
    place = deployed(old, {"stays": crontab("*/2"), "comes": crontab("*/2"), "after": crontab("*/5")})

    assert minutes(place, "stays") == list(range(2, 31, 2))
    assert minutes(place, "goes") == list(range(2, 21, 2))
    assert minutes(place, "comes") == list(range(12, 31, 2))
    assert minutes(place, "before") == [5, 10, 15, 20]
    assert minutes(place, "after") == [15, 20, 25, 30]


def test_an_entry_that_comes_back_goes_on_from_its_last_run() -> None:
    """What came due while no replica had it is made up for once."""
    place = deployed({"one": 120.0}, {})
    sent = place.times("one")
    place.schedule = {"one": 120.0}
    place.replicas.clear()
    place.start()
    place.run(seconds=5, step=1)

    assert len(place.times("one")) == len(sent) + 1
