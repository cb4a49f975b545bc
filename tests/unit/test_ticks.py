"""When ticks are due, what they are called, and how replicas agree on them; on clocks that the test turns."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import crontab, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from singleflight.celery.beat import SingleflightScheduler
from singleflight.celery.schedule_times import SKEW, due_of, last_run, next_due, task_id, tick_id
from singleflight.errors import ConfigurationError, Conflict, StoreUnavailable
from singleflight.keys import lease_key
from singleflight.stores.memory import MemoryStore
from tests.support.replica import NOON, Clock, Place, Posted, Recorder, Replica
from tests.support.waiting import until


def entry(when: Any, last: datetime, zone: str = "UTC") -> ScheduleEntry:
    """Return an entry as beat has it."""
    app = Celery("entry", set_as_current=False)
    app.conf.timezone = zone
    return ScheduleEntry(
        name="e", task="t", schedule=when, last_run_at=last.astimezone(ZoneInfo(zone)), app=app
    )


def test_a_ticks_name_is_the_same_whatever_the_zone_it_is_written_in() -> None:
    """An instant names one tick, in whichever zone a replica counts, and can be read back from the name."""
    berlin = NOON.astimezone(ZoneInfo("Europe/Berlin"))

    assert tick_id("e", berlin) == tick_id("e", NOON)
    assert due_of(tick_id("a@b", NOON)) == NOON
    assert due_of("written by hand") is None
    assert task_id("key", tick_id("e", NOON)) != task_id("other", tick_id("e", NOON))


@pytest.mark.parametrize(
    "when", [5.0, schedule(5.0, relative=True), crontab(), crontab("0", "2"), crontab(month_of_year="2")]
)
def test_the_next_due_instant_does_not_depend_on_the_clock(when: Any) -> None:
    """Asked at any later time, an entry names the same instant as the first after its last run."""
    asked_at_once = next_due(entry(when, NOON))

    assert asked_at_once > NOON
    assert next_due(entry(when, NOON)) == asked_at_once


@settings(deadline=None)
@given(
    last=st.datetimes(datetime(2024, 1, 1), datetime(2026, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]),
)
def test_a_crontab_is_due_after_its_last_run_and_within_a_day_or_so(
    last: datetime, hour: int, minute: int, zone: str
) -> None:
    """Over every change of the clocks, a daily entry is due next after its last run."""
    due = next_due(entry(crontab(str(minute), str(hour)), last, zone))

    assert timedelta(0) < due - last <= timedelta(hours=25, seconds=1)


def test_an_interval_goes_on_from_its_due_instant_unless_the_next_one_has_passed() -> None:
    """A tick that is a little late shifts nothing; one that comes after an outage begins a new rhythm."""
    five = schedule(5.0)

    assert last_run(five, NOON, NOON + timedelta(seconds=4.9)) == NOON
    assert last_run(five, NOON, NOON + timedelta(seconds=7)) == NOON + timedelta(seconds=7)
    assert last_run(five, NOON, NOON - timedelta(seconds=3)) == NOON, "sent by a clock that is ahead"
    assert last_run(five, NOON, None) == NOON
    assert last_run(five, NOON + SKEW * 2, NOON) == NOON, "a due instant that cannot be"


def test_a_crontab_goes_on_from_when_it_ran_but_never_from_before_its_instant() -> None:
    """A replica whose clock is ahead sends early; nobody takes the same instant for due again."""
    assert last_run(crontab(), NOON, NOON - timedelta(seconds=3)) == NOON
    assert last_run(crontab(), NOON, NOON + timedelta(seconds=3)) == NOON + timedelta(seconds=3)


def test_three_replicas_send_what_one_would() -> None:
    """Replicas that start at different moments find one rhythm, and each tick is sent once."""
    place = Place({"two": 2.0})
    place.start()
    place.run(seconds=0.7)
    place.start()
    place.run(seconds=0.7)
    place.start()
    place.run(seconds=18.6)

    assert place.times("two") == [2.0 * n for n in range(1, 11)]
    assert len({one.task_id for one in place.posted}) == 10


def test_a_replica_that_slept_learns_what_was_sent_and_sends_nothing() -> None:
    """After a pause of 100 ticks, more than a record remembers, the woken replica is told where they are."""
    place = Place({"one": 1.0})
    awake = place.start()
    sleeper = place.start()
    place.run(seconds=2)
    place.replicas = [awake]
    place.run(seconds=100)
    sent = len(place.posted)

    sleeper.run()
    place.replicas = [sleeper]
    place.run(seconds=3)

    assert len({one.task_id for one in place.posted}) == len(place.posted) == sent + 3


def test_a_tick_whose_replica_died_is_sent_under_the_same_id_by_another() -> None:
    """Claimed and never confirmed, a tick is sent by another replica once the claim has lapsed."""
    place = Place({"ten": 10.0})
    dying, heir = place.start(), place.start()
    claims = []

    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    dying.scheduler._publish = die
    # Its release never reaches the store: the process is gone.
    release, place.store.release = place.store.release, lambda _: False
    place.clock.turn(timedelta(seconds=10))
    dying.run()
    claims.append(place.store.peek(place.replicas[0].scheduler._ticks.key("ten")).record.run_id)
    place.store.release = release
    place.replicas = [heir]
    place.run(seconds=11)

    assert place.times("ten") == [15.0, 20.0] or place.times("ten")[0] == pytest.approx(15.0, abs=0.3)
    assert place.posted[0].task_id == task_id(heir.scheduler._ticks.key("ten"), claims[0])


def test_publishing_that_fails_leaves_the_tick_due_for_everybody() -> None:
    """A replica whose broker is away gives its tick back at once; another one sends it, once."""
    place = Place({"ten": 10.0, "twelve": 12.0})
    cut_off, _ = place.start(), place.start()
    cut_off.scheduler.broken = True
    place.run(seconds=13)

    assert place.times("ten") == [10.0]
    assert place.times("twelve") == [12.0]


def test_a_stop_that_a_driver_swallows_is_obeyed_at_the_next_tick() -> None:
    """A beat that was told to stop while it published ends, and leaves the tick to another."""

    class Interrupted(Recorder):
        def send_task(self, *_: Any, **__: Any) -> None:
            self.close()  # what Celery's signal handler does before it raises SystemExit
            raise ConnectionError("I/O operation on closed file")  # what a driver's clean-up made of that

    place = Place({"one": 1.0})
    place.start(wrapped=Interrupted)
    with pytest.raises(SystemExit):
        place.run(seconds=3)
    place.replicas.clear()
    place.start()
    place.run(seconds=0.5)

    assert place.times("one") == [pytest.approx(1.0, abs=0.3)]


@pytest.mark.parametrize("raised", [SystemExit, ConnectionError, None])
def test_a_stop_while_publishing_touches_no_schedule_that_is_closed(
    raised: type[BaseException] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A schedule in a file is closed before the loop ends; what it says then is not in the stop's way."""

    class Shelved(Recorder):
        def get_schedule(self) -> Any:
            if self._closed:
                raise ValueError("invalid operation on closed shelf")
            return self.data

        schedule = property(get_schedule, Recorder.set_schedule)

        def send_task(self, *args: Any, **options: Any) -> None:
            self.close()
            if raised is not None:
                raise raised("told to stop")
            super().send_task(*args, **options)

    place = Place({"one": 1.0})
    place.start(wrapped=Shelved)
    with pytest.raises(SystemExit):
        place.run(seconds=3)

    assert "closed shelf" not in caplog.text


def test_a_task_that_refuses_duplicates_has_had_its_tick() -> None:
    """A Conflict while publishing is an answer, not a failure: the tick is not tried again."""
    tried = []

    class Refusing(Recorder):
        def send_task(self, *_: Any, **__: Any) -> None:
            tried.append(self.app.clock())
            raise Conflict("another run waits")

    place = Place({"one": 1.0}, wrapped=Refusing)
    place.start()
    place.run(seconds=3)

    assert len(tried) == 3


@pytest.mark.parametrize("ttl", [7, 7.0, timedelta(seconds=7)])
def test_a_replica_that_hangs_keeps_its_tick_for_no_longer_than_two_ttls(ttl: Any) -> None:
    """While it waits for its broker, say, its claim is renewed for one ttl at most."""
    place = Place({"one": 1.0}, singleflight_beat_ttl=ttl)
    replica = place.start()
    place.clock.turn(timedelta(seconds=1))
    entry_due = replica.scheduler.schedule["one"]

    assert replica.scheduler.is_due(entry_due).is_due
    assert replica.scheduler._claimed.lease.max_hold == 7


def test_an_entry_whose_publishing_always_fails_does_not_hold_up_the_others() -> None:
    """One bad entry is tried again ever more rarely, while another is sent in its rhythm."""
    tried = []

    class Picky(Recorder):
        def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> None:
            if args[0] == "bad":
                tried.append(self.app.clock())
                raise TypeError("cannot be serialized")
            super().send_task(name, args, kwargs, **options)

    place = Place({"bad": 1.0, "good": 1.0}, wrapped=Picky)
    place.start()
    place.run(seconds=5)

    assert place.times("good") == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(tried) < 5


BERLIN = {"half past two": crontab("30", "2"), "hourly": crontab("0"), "four past four": crontab("4", "16")}
SPRING, AUTUMN = datetime(2024, 3, 31, tzinfo=UTC), datetime(2024, 10, 27, tzinfo=UTC)


def over_the_change(change: datetime, *, replicas: int, **settings: Any) -> list[Posted]:
    """Let replicas in Berlin run over a change of daylight saving time, the last one restarted in the gap."""
    place = Place(BERLIN, change - timedelta(hours=12, minutes=1), zone="Europe/Berlin", **settings)
    for _ in range(replicas):
        place.start()
    place.run(seconds=13.2 * 3600, step=60)  # until twelve minutes into the changed hour
    if replicas > 1:
        place.replicas.pop()
        place.start()
    place.run(seconds=32 * 3600, step=60)
    return place.posted


def test_scenario_122_the_spring_hour_that_does_not_exist_sends_nothing_twice() -> None:
    """Over the gap two replicas use the same instants: each hour once, 16:04 once a day, none again."""
    posted = over_the_change(SPRING, replicas=2)

    assert len({one.task_id for one in posted}) == len(posted)
    hours = [one.at for one in posted if one.name == "hourly"]
    assert {later - earlier for earlier, later in pairwise(hours)} == {timedelta(hours=1)}
    local = [one.at.astimezone(ZoneInfo("Europe/Berlin")) for one in posted if one.name == "four past four"]
    assert [(at.day, at.hour, at.minute) for at in local] == [(30, 16, 4), (31, 16, 4)]
    days = [one.at.date() for one in posted if one.name == "half past two"]
    assert len(days) == len(set(days))


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="older Celery's own schedules jump at the change")
@pytest.mark.parametrize("change", [SPRING, AUTUMN])
def test_over_a_change_of_the_clocks_replicas_send_what_one_plain_beat_would(change: datetime) -> None:
    """Whatever Celery makes of the missing and the double hour, replicas make the same of it."""
    shared = over_the_change(change, replicas=2)
    plain = over_the_change(change, replicas=1, singleflight_enabled=False)

    assert sorted((one.at, one.name) for one in shared) == sorted((one.at, one.name) for one in plain)


def test_a_replica_whose_clock_is_off_sends_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Ten seconds ahead of the store, a replica leaves the tick to others and complains once."""
    place = Place({"ten": 10.0})
    ahead = Clock(NOON + timedelta(seconds=10))
    place.start(ahead)
    place.start()
    with caplog.at_level(logging.WARNING, "singleflight"):
        for _ in range(31):
            ahead.turn(timedelta(seconds=1))
            place.clock.turn(timedelta(seconds=1))
            for replica in place.replicas:
                replica.run()

    assert sum("10 s off the store's" in text for text in caplog.messages) == 1
    assert place.times("ten") == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("ahead", [-2.0, 2.0])
@pytest.mark.parametrize("store_ahead", [-2.0, 0.0, 2.0])
def test_clocks_that_differ_by_seconds_change_no_rhythm(ahead: float, store_ahead: float) -> None:
    """With one replica and the store seconds off, each tick is still sent once, one period apart."""
    place = Place({"ten": 10.0, "cron": crontab()})
    other, place.store_clock = (
        Clock(NOON + timedelta(seconds=ahead)),
        Clock(NOON + timedelta(seconds=store_ahead)),
    )
    place.start()
    place.start(other)
    for _ in range(1300):
        for clock in (place.clock, other, place.store_clock):
            clock.turn(timedelta(seconds=0.1))
        for replica in place.replicas:
            replica.run()

    ids = {name: {one.task_id for one in place.posted if one.name == name} for name in ("ten", "cron")}
    # A replica that is behind at noon sends the tick of noon as well.
    assert len(ids["cron"]) == len(place.times("cron")) == 2 + (ahead < 0)
    assert len(ids["ten"]) == len(place.times("ten"))
    assert 12 <= len(ids["ten"]) <= 13


def test_an_outage_of_the_store_is_said_once_and_made_up_for_once(caplog: pytest.LogCaptureFixture) -> None:
    """While the store is away nothing is sent; afterwards what is overdue is sent once."""

    class Sometimes(MemoryStore):
        away = False

        def claim(self, claim: Any) -> Any:
            if self.away:
                raise StoreUnavailable("no answer")
            return super().claim(claim)

        def peek(self, key: str) -> Any:
            if self.away:
                raise StoreUnavailable("no answer")
            return super().peek(key)

    place = Place({"one": 1.0})
    place.store = Sometimes(clock=place.clock)
    replica = place.start()
    place.run(seconds=2)
    place.store.away = True
    with caplog.at_level(logging.WARNING, "singleflight"):
        for _ in range(8):
            replica.scheduler._ticks._rests_until = 0.0
            place.run(seconds=1)
        place.store.away = False
        for _ in range(2):  # it looks, and waits a little for those who have sent to confirm
            replica.scheduler._ticks._rests_until = 0.0
            place.run(seconds=1)

    first, second, late, *next_ones = place.times("one")
    assert (first, second) == (1.0, 2.0)
    assert 10 < late <= 12
    assert next_ones in ([], [late + 1])
    assert sum("sends nothing until the store answers" in text for text in caplog.messages) == 1
    assert sum("store error" in text for text in caplog.messages) <= 1


def test_a_store_that_fails_between_sending_and_confirming_costs_no_second_message() -> None:
    """A tick whose confirmation found no store is confirmed when it is back, before others may claim."""

    class Sometimes(MemoryStore):
        away = False

        def release(self, release: Any) -> bool:
            if self.away:
                raise StoreUnavailable("no answer")
            return super().release(release)

    place = Place({"ten": 10.0})
    place.store = store = Sometimes(clock=place.clock)

    class Failing(Recorder):
        def send_task(self, *args: Any, **kwargs: Any) -> None:
            super().send_task(*args, **kwargs)
            store.away = True

    sender = place.start(wrapped=Failing)
    other = place.start()
    place.clock.turn(timedelta(seconds=10))
    sender.run()
    key = sender.scheduler._ticks.key("ten")
    assert not any(run.ended for run in store.peek(key).record.runs)
    store.away = False
    until(lambda: any(run.ended for run in store.peek(key).record.runs), 10, "the confirmation")
    place.clock.turn(timedelta(seconds=6))
    other.run()

    assert place.times("ten") == [10.0]


def test_a_tick_never_meets_a_lease_of_the_same_name() -> None:
    """Whatever a task or lease is called, no beat record has its key."""
    replica = Place({"nightly": 1.0}).start()

    assert replica.scheduler._ticks.key("nightly") not in {
        lease_key("singleflight", name) for name in ("nightly", "beat:nightly", "beat")
    }


def test_an_app_without_leases_is_told_what_to_write() -> None:
    """Without install(app) beat refuses to start, and names the remedy."""
    with pytest.raises(ConfigurationError, match=r"singleflight\.celery\.install\(app\)"):
        SingleflightScheduler(Celery("bare", set_as_current=False))


def test_the_wrapped_scheduler_cannot_be_singleflight_itself() -> None:
    """Naming singleflight in both settings is refused instead of wrapping it for ever."""
    with pytest.raises(ConfigurationError, match="singleflight_beat_scheduler"):
        Replica(Clock(NOON), MemoryStore(), {}, [], wrapped="singleflight")  # type: ignore[arg-type]


def test_switched_off_beat_is_what_it_was() -> None:
    """With singleflight_enabled=False the scheduler is the wrapped class itself."""
    app = Celery("off", broker="memory://", set_as_current=False)
    app.conf.singleflight_enabled = False
    from singleflight.celery import install

    install(app, MemoryStore())

    assert type(SingleflightScheduler(app, lazy=True)) is Scheduler
