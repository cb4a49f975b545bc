"""What an entry may ask for besides its schedule: how missed planned times are made up for, and jitter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from singleflight.celery import install
from singleflight.celery.beat import SingleflightScheduler
from singleflight.errors import ConfigurationError
from singleflight.events import Event, Kind
from tests.support.replica import NOON, FakeTimeApp, Place


def away(schedule: Any, *, minutes: float, replicas: int = 3, **options: Any) -> tuple[Place, list[Event]]:
    """Let beats send an entry for some minutes, and be away for others; return the place with new ones."""
    heard: list[Event] = []
    place = Place(
        {"one": schedule},
        NOON + timedelta(seconds=30),
        singleflight_beat_entries={"one": options},
        singleflight_listeners=[heard.append],
    )
    place.start()
    place.run(seconds=60, step=5)
    place.replicas.clear()
    place.posted.clear()
    place.clock.turn(timedelta(minutes=minutes))
    for _ in range(replicas):
        place.start()
    return place, heard


def missed(heard: list[Event]) -> list[str]:
    """Return what was told of planned times that are left out."""
    return [event.reason for event in heard if event.kind is Kind.MISSED]


@pytest.mark.parametrize(
    ("options", "expected", "told"),
    [
        ({"catch_up": "none"}, 0, ["12:02:00"]),
        ({"catch_up": "latest"}, 1, []),
        ({"catch_up": "latest", "catch_up_window": 40}, 1, []),
        ({"catch_up": "latest", "catch_up_window": 20}, 0, ["12:02:00", "12:06:00"]),
        ({"catch_up": "all", "catch_up_window": timedelta(hours=1)}, 5, []),
        ({"catch_up": "all", "catch_up_window": 160}, 3, ["12:02:00", "12:03:00"]),
        ({"catch_up": "all", "catch_up_window": 20}, 0, ["12:02:00", "12:06:00"]),
    ],
)
def test_planned_times_that_no_beat_sent_are_made_up_for_as_asked(
    options: dict[str, Any], expected: int, told: list[str]
) -> None:
    """Sent at 12:01, away until 12:06:30: none, the latest or each is sent, and what is too old is told."""
    place, heard = away(crontab(), minutes=5, **options)
    place.run(seconds=20, step=1)

    assert len(place.posted) == len({one.task_id for one in place.posted}) == expected
    for text in told:
        assert text in " ".join(missed(heard)), heard
    assert bool(missed(heard)) == bool(told)
    place.posted.clear()
    place.run(seconds=120, step=1)
    assert len(place.posted) == 2, "and it goes on in its rhythm"


def test_each_missed_time_of_an_interval_is_sent_with_its_planned_time() -> None:
    """Planned times of an interval count from the last one; three replicas make up for them in order."""
    place, _ = away(schedule(20.0), minutes=2, catch_up="all", catch_up_window=3600)
    place.run(seconds=10, step=1)
    heads = [one.headers["singleflight_planned"] for one in place.posted]

    # Seen at 12:00:30, sent at :50, :10, :30.
    steps = [NOON + timedelta(seconds=110 + 20 * n) for n in range(6)]
    assert heads == [step.isoformat() for step in steps]
    assert len({one.task_id for one in place.posted}) == 6


def test_jitter_delays_each_tick_by_the_same_for_all_and_shifts_no_rhythm() -> None:
    """Every planned time is sent once, up to the jitter later, by whichever replica; and not all alike."""
    place = Place({"one": crontab(), "two": crontab()}, singleflight_beat_entries={"one": {"jitter": 30}})
    for _ in range(3):
        place.start()
    place.run(seconds=20 * 60 + 31, step=0.5)
    delays = [seconds % 60 for seconds in place.times("one")]
    alone = Place({"one": crontab()}, singleflight_beat_entries={"one": {"jitter": 30}})
    alone.start()
    alone.run(seconds=20 * 60 + 31, step=0.5)

    assert len(delays) == 20
    assert all(delay <= 30.5 for delay in delays)
    assert len({round(delay) for delay in delays}) > 8
    assert place.times("one") == alone.times("one")
    assert all(seconds % 60 < 1 for seconds in place.times("two"))


def test_an_interval_with_jitter_keeps_its_period() -> None:
    """The next planned time counts from the planned time, and not from when it was sent."""
    place = Place({"one": 60.0}, singleflight_beat_entries={"one": {"jitter": 20}})
    place.start()
    place.run(seconds=30 * 60 + 21, step=0.5)

    assert len(place.posted) == 30


def test_options_stand_in_the_entry_or_in_the_settings_which_go_before() -> None:
    """What `beat_schedule` has under options goes to no message."""
    place = Place(
        {"one": crontab()},
        NOON,
        options={"queue": "q", "singleflight": {"jitter": 5, "catch_up": "none"}},
        singleflight_beat_entries={"one": {"jitter": 7}},
    )
    options = place.start().scheduler._options.of(place.replicas[0].scheduler.schedule["one"])

    assert (options.jitter, options.catch_up) == (7, "none")
    place.run(seconds=70, step=1)
    assert [one.options for one in place.posted] == [{"queue": "q"}]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beat_catch_up": True}, "write 'none', 'latest' or 'all'"),
        ({"beat_catch_up": "all"}, "needs a catch_up_window"),
        ({"beat_entries": ["one"]}, "is no dict of names and options"),
        ({"beat_entries": {"one": 5}}, "beat entry one: 5 is no dict of options"),
        ({"beat_entries": {"one": {"jiter": 5}}}, "'jiter' is no option; there are catch_up,"),
        ({"beat_entries": {"one": {"jitter": "5"}}}, "beat entry one: jitter='5' is no duration"),
        ({"beat_entries": {"one": {"catch_up_window": -1}}}, "is no duration"),
    ],
)
def test_an_option_that_cannot_be_stops_beat_at_its_start(settings: dict[str, Any], said: str) -> None:
    """The message names the entry, the option and what to write."""
    app = FakeTimeApp("wrong", broker="memory://", set_as_current=False)
    app.conf.update({f"singleflight_{name}": value for name, value in settings.items()})
    install(app, "memory://wrong")

    with pytest.raises(ConfigurationError, match=said.replace("(", ".")):
        SingleflightScheduler(app)


def test_a_misspelt_name_and_a_long_jitter_are_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """Both do nothing, or less than they seem."""
    options = {"on": {"jitter": 5}, "one": {"jitter": 60}}
    place = Place({"one": crontab()}, singleflight_beat_entries=options)
    place.start()
    place.run()
    said = caplog.text

    assert "singleflight_beat_entries names on, which the schedule does not have" in said
    assert "one is sent every 60 s, but has jitter=60: planned times overtake each other" in said
