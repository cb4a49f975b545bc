"""What operators do with beat's entries: look, trigger, backfill, pause; on a clock that the test turns."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from singleflight.celery import beat
from singleflight.cli.operators.access import Access
from singleflight.errors import ConfigurationError
from tests.support.replica import NOON, Place, Recorder


@pytest.fixture
def place() -> Place:
    """Two replicas that have run for some minutes; what operators send goes where theirs does."""
    place = Place({"cron": crontab(), "every": schedule(90)}, NOON + timedelta(seconds=30))
    for _ in range(2):
        place.start()
    place.run(seconds=180, step=1)
    return place


@pytest.fixture
def app(place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The app of one of them."""
    monkeypatch.setattr(Recorder, "posted", place.posted, raising=False)
    return place.replicas[0].scheduler.app


def at(clock: str) -> datetime:
    """Return a moment of the day of `NOON`."""
    hour, minute, *second = map(int, clock.split(":"))
    return datetime(NOON.year, NOON.month, NOON.day, hour, minute, *second, tzinfo=UTC)


def test_entries_say_what_was_sent_and_what_comes(place: Place, app: Any) -> None:
    """By name, with the schedule in words; after an outage, how many planned times were missed."""
    cron, every = beat.entries(app)

    assert (cron.name, cron.task, cron.schedule) == (
        "cron",
        "known.only.by_name",
        "crontab * * * * *",
    )
    assert (cron.last, cron.next, cron.missed, cron.paused) == (at("12:03"), at("12:04"), 0, None)
    assert cron.by is not None
    assert cron.by.task == "beat:cron"
    assert (every.schedule, every.next) == ("every 1.50 minutes", at("12:05"))
    place.clock.turn(timedelta(minutes=10, seconds=5))
    cron, every = beat.entries(app)
    assert (cron.missed, cron.next) == (10, at("12:14"))
    assert every.missed == 6


def test_a_trigger_sends_now_and_leaves_the_rhythm(place: Place, app: Any) -> None:
    """Under an id of its own each time."""
    before = len(place.posted)
    ids = {beat.trigger(app, "cron") for _ in range(2)}

    assert {one.task_id for one in place.posted[before:]} == ids
    assert len(ids) == 2
    place.run(seconds=60, step=1)
    assert [one.at for one in place.posted if one.name == "cron"][-1] == at("12:04")
    with pytest.raises(ConfigurationError, match="beat has no entry cr; there are: cron, every"):
        beat.trigger(app, "cr")


def test_a_backfill_that_two_ask_for_at_once_sends_each_planned_time_once(place: Place, app: Any) -> None:
    """500 planned times; asked once more, nothing is sent; a longer range sends what is new."""
    place.posted.clear()
    begin, end = at("12:00") - timedelta(days=1), at("12:00") - timedelta(days=1) + timedelta(minutes=500)
    done: list[Any] = []
    asked = [
        threading.Thread(target=lambda: done.append(beat.backfill(app, "cron", begin, end))) for _ in range(2)
    ]
    for one in asked:
        one.start()
    for one in asked:
        one.join()

    planned = [one.headers["singleflight_planned"] for one in place.posted]
    assert sorted(planned) == [(begin + timedelta(minutes=n)).isoformat() for n in range(500)]
    assert len({one.task_id for one in place.posted}) == 500
    assert sorted(done[0].sent + done[1].sent) == sorted(done[0].before + done[1].before)
    again = beat.backfill(app, "cron", begin, end + timedelta(minutes=3))
    assert (len(again.sent), len(again.before)) == (3, 500)


def test_a_backfill_sends_nothing_of_the_future(place: Place, app: Any) -> None:
    """It ends at now; a message that could not be published is sent when it is asked again."""
    place.posted.clear()
    found = beat.backfill(app, "cron", at("12:02"), at("13:00"))

    assert found.sent == [at("12:02"), at("12:03")]
    place.clock.turn(timedelta(minutes=2))
    Recorder.broken = True
    try:
        with pytest.raises(Exception, match="the broker is away"):
            beat.backfill(app, "cron", at("12:02"), at("13:00"))
    finally:
        Recorder.broken = False
    assert beat.backfill(app, "cron", at("12:02"), at("13:00")).sent == [at("12:04"), at("12:05")]


def test_a_backfill_of_an_interval_means_the_same_times_whoever_asks(place: Place, app: Any) -> None:
    """Multiples of its period, and not its runs, which nobody remembers; `ls` shows no record of them."""
    first = beat.backfill(app, "every", at("10:00:10"), at("10:05"))
    second = beat.backfill(app, "every", at("10:00"), at("10:06"))

    assert first.sent == [at("10:01:30"), at("10:03"), at("10:04:30")]
    assert (second.before, second.sent) == (first.sent, [at("10:00")])
    shown = Access(place.store, app.singleflight.prefix).entries()
    assert {entry.name.partition(":")[0] for entry in shown} == {"beat"}
    assert len(list(Access(place.store, app.singleflight.prefix).entries())) == 2


@pytest.mark.parametrize("name", ["cron", "every"])
def test_a_paused_entry_is_sent_by_nobody_and_goes_on_when_resumed(place: Place, app: Any, name: str) -> None:
    """Replicas that start meanwhile know it too; what came due is made up for as ``catch_up`` says."""
    paused = beat.pause(app, name, owner="ops", note="the disk is full")
    place.posted.clear()
    place.start()
    place.run(seconds=300, step=1)
    (shown,) = [one for one in beat.entries(app) if one.name == name]

    assert str(paused) == str(shown.paused) == "paused by ops: the disk is full"
    assert name not in {one.name for one in place.posted}
    assert shown.missed >= 3
    assert beat.resume(app, name) == paused
    assert beat.resume(app, name) is None
    place.run(seconds=6, step=1)
    assert len([one for one in place.posted if one.name == name]) == 1
    place.run(seconds=181, step=1)
    assert len([one for one in place.posted if one.name == name]) == (4 if name == "cron" else 3)


def test_a_pause_for_a_time_ends_by_itself(place: Place, app: Any) -> None:
    """And one who pauses what somebody else has paused is told by whom."""
    paused = beat.pause(app, "cron", owner="ops", seconds=150)
    place.posted.clear()

    assert paused.until == place.clock.now + timedelta(seconds=150)
    with pytest.raises(
        ConfigurationError, match="cron is paused by ops until 2026-03-02 12:06:00Z; resume it"
    ):
        beat.pause(app, "cron", owner="others")
    place.run(seconds=149, step=1)
    assert "cron" not in {one.name for one in place.posted}
    place.run(seconds=10, step=1)
    assert len([one for one in place.posted if one.name == "cron"]) == 1


def test_an_entry_that_was_never_sent_can_be_paused(app: Any) -> None:
    """And an operator learns of a name that there is not."""
    place = Place({"new": schedule(5)})
    place.start()
    own = place.replicas[0].scheduler.app
    beat.pause(own, "new", owner="ops")
    place.run(seconds=30, step=1)

    assert place.posted == []
    beat.resume(own, "new")
    place.run(seconds=12, step=1)
    assert 1 <= len(place.posted) <= 3
    with pytest.raises(ConfigurationError, match="beat has no entry cr"):
        beat.pause(app, "cr", owner="ops")
