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
from celery.beat import Scheduler
from celery.schedules import BaseSchedule, crontab, schedule

from singleflight.celery.beat import SingleflightScheduler
from singleflight.celery.schedule_times import Tick, later, rule_of, tick_of
from singleflight.errors import ConfigurationError, Conflict, StoreUnavailable
from singleflight.keys import lease_key
from singleflight.stores.memory import MemoryStore
from tests.support.replica import NOON, Clock, OrderedEntry, Place, Posted, Recorder, Replica
from tests.support.waiting import until


def test_a_tick_can_be_read_back_from_its_name() -> None:
    """What a replica was told about a tick stands in its run id, whatever the entry is called."""
    berlin = NOON.astimezone(ZoneInfo("Europe/Berlin"))
    tick = Tick("a@b/c", NOON, NOON + timedelta(seconds=5.000001), NOON + timedelta(hours=1), "1a2b3c4d")

    assert tick_of("a@b/c", tick.run_id) == tick
    assert Tick("e", berlin, berlin).run_id == Tick("e", NOON, NOON).run_id
    assert tick_of("e", Tick("e", None, NOON).run_id) == Tick("e", None, NOON)
    assert tick_of("e", f"e@{NOON.isoformat()}") == Tick("e", None, NOON), "as an older version wrote it"
    assert tick_of("e", "written by hand") is None


def test_who_follows_the_same_run_sends_under_the_same_task_id() -> None:
    """Two replicas that take one run for the last send copies, and not two messages."""
    one, other, next_one = (Tick("e", NOON, NOON + timedelta(seconds=n)) for n in (1, 2, 2))
    next_one = Tick("e", one.at, next_one.at)

    assert one.task_id("key") == other.task_id("key") != next_one.task_id("key")
    assert one.task_id("key") != one.task_id("other key")


@pytest.mark.parametrize("wait", [None, True, float("nan"), "soon", timedelta(seconds=1)])
def test_a_wait_that_is_no_number_says_nothing(wait: Any) -> None:
    """Of what a schedule may return, only numbers say when it wants to be asked again."""
    assert later(NOON, wait) is None
    assert later(NOON, float("inf")) > NOON
    assert later(NOON, -1) == NOON


def test_schedules_are_told_apart_by_what_they_say_of_themselves() -> None:
    """Settings that a repr tells make another rule; where an object lies in memory makes none."""

    class Bare(BaseSchedule):
        pass

    class Failing(BaseSchedule):
        def __repr__(self) -> str:
            raise ValueError

    app = Celery("rules", set_as_current=False)
    assert rule_of(schedule(5.0, app=app)) != rule_of(schedule(6.0, app=app))
    assert rule_of(schedule(5.0, app=app)) == rule_of(schedule(5.0, app=app))
    assert rule_of(Bare(app=app)) == rule_of(Bare(app=app)) != rule_of(Failing(app=app))
    assert rule_of(crontab(app=app, nowfun=object())) == rule_of(crontab(app=app, nowfun=object()))


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
    key = heir.scheduler._ticks.key("ten")
    assert place.posted[0].task_id == tick_of("ten", claims[0]).task_id(key)


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
    assert replica.scheduler._due.claimed.lease.max_hold == 7


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
    if celery.VERSION >= (5, 5):  # before, Celery's own crontab was an hour late on that day
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
    # All count from when the first one saw the entry: a replica that is behind does not send that of noon.
    assert len(ids["cron"]) == len(place.times("cron")) == 2
    assert len(ids["ten"]) == len(place.times("ten"))
    assert 12 <= len(ids["ten"]) <= 13


def rest_no_longer(ticks: Any) -> None:
    """Have the store asked at once, though it has just failed or come back."""
    ticks._breaker._rests_until = ticks._quiet_until = 0.0


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
            rest_no_longer(replica.scheduler._ticks)
            place.run(seconds=1)
        place.store.away = False
        for _ in range(2):  # it looks, and waits a little for those who have sent to confirm
            rest_no_longer(replica.scheduler._ticks)
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


def test_many_entries_are_not_compared_with_themselves_in_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery compares all entries whenever it looks; with 10,000 that would be most of what replicas cost."""
    compared: list[str] = []
    equal = OrderedEntry.editable_fields_equal

    def counted(self: Any, other: Any) -> Any:
        compared.append(self.name)
        return equal(self, other)

    place = Place({f"{number}": 100.0 + number for number in range(100)})
    place.start()
    place.run()
    monkeypatch.setattr(OrderedEntry, "editable_fields_equal", counted)
    place.run(seconds=150, step=1)

    assert len(place.posted) == 51
    assert len(compared) == 51
    place.replicas[0].scheduler.schedule.pop("6")
    place.run(seconds=5, step=1)
    assert "6" not in {entry.name for _, _, entry in place.replicas[0].scheduler._heap}


def test_an_interval_is_sent_in_its_rhythm_though_its_only_beat_is_replaced_more_often() -> None:
    """A beat lives for 3.5 s, and another takes its place at once: a tick each 5 s."""
    place = Place({"one": 5.0})
    for _ in range(100):
        place.replicas.clear()
        place.start()
        place.run(seconds=3.5, step=0.5)

    assert place.times("one") == [5.0 * number for number in range(1, 71)]
