"""Scenarios 110 to 130: troubles of users with several beats, on real `celery beat` processes.

Number 122 (daylight saving time) needs a clock that can be turned and stands in tests/unit/test_ticks.py.
"""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import redis
from celery.schedules import crontab

from tests.support.beats import Replicas, entry, twice
from tests.support.replica import NOON, Place
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PERIOD = 1.5
"""Seconds: a machine that is busy with other things may be late, but hardly by so much."""

MORTAL = {"singleflight_beat_scheduler": "tests.support.beat_app:Mortal", "singleflight_beat_ttl": 1}


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    """Return a place for replicas, whose messages a mailbox takes."""
    with Replicas(tmp_path) as found:
        yield found


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Replicas]:
    """Return a place for replicas and workers."""
    with Replicas(tmp_path, mailbox=False) as found:
        yield found


def wait_for(replicas: Replicas, count: int, name: str = "one") -> None:
    """Wait until an entry has been sent so many more times."""
    until_now = len(replicas.mailbox.of(name))
    until(lambda: len(replicas.mailbox.of(name)) >= until_now + count, what=f"{count} more of {name}")


def test_scenario_110_several_beats_from_the_beginning_send_each_tick_once(replicas: Replicas) -> None:
    """Three beats that start together publish each planned tick of each entry once, and leave none out."""
    replicas.schedule = {"one": entry("one", PERIOD), "two": entry("two", 2 * PERIOD)}
    beats = [replicas.start(ready=False) for _ in range(3)]
    for beat in beats:
        beat.wait_ready()
    wait_for(replicas, 5)
    wait_for(replicas, 1, "two")
    replicas.stop()

    assert not twice(replicas.mailbox.messages)
    assert replicas.faults("one", PERIOD) == []
    assert replicas.faults("two", 2 * PERIOD) == []


@pytest.mark.parametrize("trouble", ["refused", "no such host", "wrong password"])
def test_scenario_111_a_beat_without_its_store_never_sends(replicas: Replicas, trouble: str) -> None:
    """However the store is out of reach at start, a replica publishes nothing, says so once and tries on."""
    replicas.schedule = {"one": entry("one", 0.5)}
    if trouble == "refused":
        replicas.store.kill()
    elif trouble == "no such host":
        replicas.settings["singleflight_url"] = "redis://no-such-host.invalid:6379/0"
    else:
        with redis.Redis.from_url(replicas.store.url) as client:
            client.config_set("requirepass", "secret")
    beat = replicas.start()
    until(lambda: "sends nothing until the store answers" in beat.log(), what="the complaint")
    time.sleep(3)  # six ticks, were they sent

    assert beat.alive
    assert not replicas.mailbox.messages
    assert beat.log().count("sends nothing until the store answers") == 1
    if trouble == "refused":
        replicas.store.start()
        wait_for(replicas, 2)
        assert "the store answers again" in beat.log()


@pytest.mark.parametrize("point", ["claimed", "published", "confirmed"])
def test_scenario_113_a_beat_killed_hard_costs_no_tick(replicas: Replicas, point: str) -> None:
    """A replica killed before, while or after sending is replaced within its ttl; its tick is not missing."""
    replicas.settings |= MORTAL
    replicas.schedule = {"one": entry("one", PERIOD)}
    for _ in range(2):
        replicas.start()
    wait_for(replicas, 2)
    if point == "confirmed":
        replicas.wait_confirmed("one")
        replicas.beats[0].kill()
    else:
        replicas.death.write_text(f"{point} one")
        until(lambda: not all(beat.alive for beat in replicas.beats), what="a death")
    wait_for(replicas, 3)
    replicas.stop()

    # The dead one's claim lapses after its ttl, so its tick is that much late.
    assert replicas.faults("one", PERIOD, longest=2 * PERIOD + 1) == []
    # Only one who dies between sending and confirming is sent again, under the id that it had.
    assert len(twice(replicas.mailbox.messages)) == (point == "published")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_scenario_114_a_beat_stopped_politely_holds_nobody_up(replicas: Replicas, number: int) -> None:
    """With a ttl of two minutes, a replica that ends in order leaves the next tick to the others at once."""
    replicas.settings["singleflight_beat_ttl"] = 120
    replicas.schedule = {"one": entry("one", PERIOD)}
    first, _ = replicas.start(), replicas.start()
    wait_for(replicas, 2)
    first.send(number)
    exit_code = first.wait()
    wait_for(replicas, 3)
    replicas.stop()

    assert exit_code == 0
    assert not twice(replicas.mailbox.messages)
    assert replicas.faults("one", PERIOD) == []


def test_scenario_116_a_suspended_beat_that_wakes_up_sends_nothing_stale(replicas: Replicas) -> None:
    """A replica stopped for three ttls, while another goes on, wakes up, sends nothing twice and lives on."""
    replicas.settings |= MORTAL
    replicas.schedule = {"one": entry("one", PERIOD)}
    sleeper, _ = replicas.start(), replicas.start()
    wait_for(replicas, 2)
    # Between two ticks: stopped between publishing and confirming, its tick would come a second time with the
    # same id, see the page on guarantees.
    time.sleep(PERIOD / 2)
    sleeper.send(signal.SIGSTOP)
    time.sleep(3)
    sleeper.send(signal.SIGCONT)
    wait_for(replicas, 3)
    alive = sleeper.alive
    replicas.stop()

    assert alive
    assert not twice(replicas.mailbox.messages)
    # Had it been stopped just between claim and publishing, its tick would have come after the ttl.
    assert replicas.faults("one", PERIOD, longest=2 * PERIOD + 1) == []


def test_scenario_120_a_missed_tick_is_made_up_for_once_or_left_out() -> None:
    """All beats down from 1:58 to 2:03: with catch-up each entry is sent once, late; without, not at all."""
    for catch_up, expected in (
        ("latest", {"hourly": 1, "minutely": 1}),
        ("none", {"hourly": 0, "minutely": 0}),
    ):
        place = Place(
            {"hourly": crontab("0"), "minutely": crontab()},
            NOON.replace(hour=0, minute=50),
            singleflight_beat_catch_up=catch_up,
        )
        place.start()
        place.run(seconds=68 * 60, step=5)
        place.replicas.clear()
        sent = len(place.posted)
        place.clock.turn(timedelta(minutes=5, seconds=20))

        place.start()
        place.run(seconds=20, step=5)
        late = place.posted[sent:]

        assert {name: sum(one.name == name for one in late) for name in expected} == expected
        place.run(seconds=60, step=5)
        assert [one.name for one in place.posted[sent + len(late) :]] == ["minutely"]


def test_scenario_125_an_entry_known_only_by_name_is_sent_once_and_runs_once(crew: Replicas) -> None:
    """Beats without the task's code send it by name, once per tick; workers start it once per window."""
    crew.schedule = {"one": entry("by name", 1.0, "once")}
    for _ in range(2):
        crew.work(concurrency=1)
    for _ in range(2):
        crew.start()
    until(lambda: len(crew.received("once")) >= 5, what="five messages")
    crew.stop()

    assert len(crew.received("once")) == len(set(crew.received("once")))
    assert len(crew.bodies.runs()) == 1
    assert all("known by name" not in beat.log() and "Message Error" not in beat.log() for beat in crew.beats)


def test_scenario_127_a_backlog_runs_once_and_then_the_rhythm_returns(crew: Replicas) -> None:
    """Of what piled up while no worker was there one starts; later starts keep the window's distance."""
    crew.schedule = {"one": entry("backlog", 0.5, "briefly")}
    for _ in range(2):
        crew.start()
    with redis.Redis.from_url(crew.broker.url) as client:
        until(lambda: client.llen("celery") >= 8, what="a backlog")
    for _ in range(2):
        crew.work(concurrency=2)
    until(lambda: len(crew.bodies.runs()) >= 3, what="three starts")
    crew.stop()

    runs = crew.bodies.runs()
    assert len(crew.received("briefly")) > 8
    # The store measures the window, the bodies' log a moment later.
    assert all(later.started - earlier.started > 2.5 for earlier, later in pairwise(runs))


def test_scenario_129_a_flush_of_the_store_stops_no_beat(replicas: Replicas) -> None:
    """After FLUSHALL the schedule goes on in its rhythm, and at most one tick per entry is sent again."""
    replicas.schedule = {"one": entry("one", PERIOD), "two": entry("two", 2.0)}
    for _ in range(2):
        replicas.start()
    wait_for(replicas, 3)
    with redis.Redis.from_url(replicas.store.url) as client:
        client.flushall()
    wait_for(replicas, 4)
    wait_for(replicas, 1, "two")
    replicas.stop()

    for name, every in (("one", PERIOD), ("two", 2.0)):
        assert len(twice(replicas.mailbox.of(name))) <= 1
        assert replicas.faults(name, every) == []


def test_scenario_130_entries_of_one_task_are_told_apart_by_name(crew: Replicas) -> None:
    """Three entries of one task are each sent once per tick; two with the same argument run as one."""
    crew.schedule = {
        "x": entry("1", 1.0, "once"),
        "y": entry("2", 1.0, "once"),
        "z": entry("1", 1.0, "once"),
    }
    crew.work(concurrency=2)
    for _ in range(2):
        crew.start()
    until(lambda: len(crew.received("once")) >= 9, what="nine messages")
    crew.stop()

    ticks = crew.claimed()
    sent = [ticks[task_id] for task_id in crew.received("once")]
    assert len(set(crew.received("once"))) == len(sent)
    assert len(sent) >= 9
    assert sorted(run.key for run in crew.bodies.runs()) == ["1", "2"]
