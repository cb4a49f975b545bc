"""Beats on a clock that they turn, each sleeping as long as its scheduler says, and now and then longer."""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab, maybe_schedule

from tests.support.replica import Clock, FakeTimeApp, Place, Recorder
from tests.support.schedules import KINDS, LENIENT, any_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.replica import Posted, Replica

__all__ = ["KINDS", "Outcome", "Trial", "crowded", "faults", "simulate"]

SCALES = (1.0, 40.0, 900.0, 20_000.0)
"""Seconds between two ticks, roughly: from the shortest to some hours."""

STARTS = (
    datetime(2026, 3, 2, 12, 0),  # noqa: DTZ001 - in whichever zone
    datetime(2026, 3, 28, 22, 17, 3, 5),  # noqa: DTZ001 - before the clocks go forward in Europe
    datetime(2026, 10, 24, 23, 59, 59, 999_000),  # noqa: DTZ001 - before they go back
    datetime(2026, 10, 31, 23, 30),  # noqa: DTZ001 - the same in America
    datetime(2027, 12, 31, 23, 58),  # noqa: DTZ001
)
FLOOD = timedelta(seconds=2)
TURNS = 40
"""How often a beat looks, at most, in the time that it takes to send all that is due at once."""
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")


@dataclass
class Trial:
    """One random schedule, in one zone, from one moment on."""

    seed: int
    only: str = ""
    """The one kind of schedule to try; any if empty."""
    kinds: dict[str, str] = field(default_factory=dict)
    entries: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make all of it out of the seed."""
        rng = random.Random(self.seed)
        # The sun rises once a day.
        self.scale = 20_000.0 if self.only == "solar" else 60.0 if self.only else rng.choice(SCALES)
        self.zone = rng.choice(ZONES)
        self.start = rng.choice(STARTS).replace(tzinfo=ZoneInfo(self.zone))
        self.start += timedelta(microseconds=rng.randrange(10**7))
        self.longest = rng.choice((self.scale / 3, self.scale * 5, min(300.0, self.scale)))
        self.seconds = self.scale * 8
        if self.only:
            self.seconds *= 10 if self.only == "solar" else 2
        for number in range(1 if self.only else rng.randrange(1, 4)):
            kind, make = any_schedule(rng, self.start, self.scale, only=self.only)
            if make is None:
                break
            self.kinds[f"{kind} {number}"], self.entries[f"{kind} {number}"] = kind, make


@dataclass
class Outcome:
    """What a simulation did: what was sent, and when any beat looked."""

    posted: list[Posted]
    looked: list[datetime]
    flooded: bool = False
    """Plain beat sent one entry again and again, as it does in an hour that a change of clocks repeats."""

    def sent(self) -> list[tuple[datetime, str]]:
        """Return when what was sent."""
        return [(one.at, one.name) for one in self.posted]


def simulate(trial: Trial, *, replicas: int = 1, plain: bool = False) -> Outcome:
    """Let beats run through a trial; of several, one is now and then killed and replaced."""
    settings = {"singleflight_enabled": False} if plain else {}
    place = Place(
        trial.entries,
        trial.start.astimezone(ZoneInfo("UTC")),
        zone=trial.zone,
        wrapped=Disturbed if replicas > 1 else Recorder,
        beat_max_loop_interval=max(1.0, trial.longest),
        **settings,
    )
    chances = [random.Random(f"{trial.seed} {number}") for number in range(replicas)]
    for chance in chances:
        disturb(place.start(), place, chance)
    wakes = [place.clock.now] * replicas
    end, looked = place.clock.now + timedelta(seconds=trial.seconds), []
    while (now := min(wakes)) <= end:
        number = wakes.index(now)
        chance = chances[number]
        if replicas > 1 and chance.random() < 0.01:
            place.clock.now = now
            place.replicas.pop(number)
            place.replicas.insert(number, place.start())
            place.replicas.pop()
            disturb(place.replicas[number], place, chance)
        place.clock.now = now
        pause = place.replicas[number].scheduler.tick()
        looked.append(now)
        if plain and floods(place.posted):
            return Outcome(place.posted, looked, flooded=True)
        wakes[number] = now + timedelta(seconds=max(0.0, pause or 0.0) + late(chance, trial, pause))
    return Outcome(place.posted, looked)


def floods(posted: list[Posted]) -> bool:
    """Return whether the last messages are all of one entry, and sent within two seconds."""
    last = posted[-20:]
    return len(last) == 20 and len({one.name for one in last}) == 1 and last[-1].at - last[0].at < FLOOD


def crowded(trial: Trial, outcome: Outcome) -> list[tuple[str, datetime]]:
    """Return which crontabs were sent twice in one minute, and when."""
    minutes = [
        (one.name, one.at.replace(second=0, microsecond=0))
        for one in outcome.posted
        if isinstance(trial.entries[one.name](), crontab)
    ]
    return sorted({minute for minute in minutes if minutes.count(minute) > 1})


def late(chance: random.Random, trial: Trial, pause: float | None) -> float:
    """Return by how much a beat oversleeps: a little at each turn, much now and then."""
    if not pause or pause <= 0:
        return chance.uniform(0.0005, 0.003)
    if chance.random() < 0.02:
        return chance.uniform(0.0, 3 * trial.scale)
    return chance.uniform(0.0, 0.004)


class Disturbed(Recorder):
    """While this one publishes, others look at their entries: they must not send the same."""

    others: Callable[[], None] = staticmethod(lambda: None)

    def send_task(self, *args: Any, **options: Any) -> None:
        """Let the others look, then send."""
        others, self.others = self.others, lambda: None
        others()
        self.others = others
        super().send_task(*args, **options)


def disturb(replica: Replica, place: Place, chance: random.Random) -> None:
    """Have another replica look while this one is publishing, now and then."""

    def others() -> None:
        if chance.random() < 0.2:
            other = chance.choice(place.replicas)
            if other is not replica:
                other.scheduler.tick()

    replica.scheduler.others = others


def faults(trial: Trial, outcome: Outcome) -> list[str]:
    """Return what several replicas sent twice, too early, or too late, by what one beat would have done."""
    ids = [one.task_id for one in outcome.posted]
    found = [f"{len(ids) - len(set(ids))} task ids twice"] if len(ids) != len(set(ids)) else []
    for name, make in trial.entries.items():
        times = [one.at for one in outcome.posted if one.name == name]
        if trial.kinds[name] == "failing":
            continue
        oracle = Oracle(trial, make, lenient=trial.kinds[name] in LENIENT)
        found += [f"{name}: {fault}" for fault in oracle.judge(times, outcome.looked)]
    return found


class Oracle:
    """Says when one beat that never oversleeps would send an entry next."""

    def __init__(self, trial: Trial, make: Callable[[], Any], *, lenient: bool) -> None:
        """Ask a schedule of its own, on a clock of its own."""
        self.app = FakeTimeApp("oracle", broker="memory://", set_as_current=False)
        self.app.clock = self.clock = Clock(trial.start)
        self.app.conf.timezone = trial.zone
        self.schedule = maybe_schedule(make(), app=self.app)
        self.trial, self.lenient = trial, lenient

    def judge(self, times: list[datetime], looked: list[datetime]) -> list[str]:
        """Compare the times at which an entry was sent with when it was due."""
        found, last, asked = [], self.trial.start.astimezone(ZoneInfo("UTC")), None
        asked = last
        for sent in [*times, None]:
            due, look = self.next(last, asked, looked[-1])
            if (
                sent is not None
                and due is not None
                and sent < due
                and not (self.lenient and self.due(last, sent))
            ):
                found.append(f"sent at {sent}, due after {last} at {due}")
            if due is not None:
                limit = self.limit(due, look, looked)
                # Who looked a moment later may have found it not due any more.
                gone = limit is not None and self.lenient and not self.due(last, limit)
                if limit is not None and not gone and (sent is None or sent > limit):
                    found.append(f"due after {last} at {due}, sent at {sent}, not by {limit}")
            elif sent is not None and not self.lenient:
                found.append(f"sent at {sent}, not due after {last}")
            if sent is None:
                break
            self.clock.now = sent
            wait = self.schedule.is_due(self.local(last))[1]
            last, asked = sent, sent + timedelta(seconds=wait or 0.0)
        return found

    def limit(self, due: datetime, look: float, looked: list[datetime]) -> datetime | None:
        """Return when a tick was missed: some beat was awake, had time for it, and had not sent it."""
        slack = timedelta(seconds=0.6 + (2 * look if self.lenient else 0.0))
        place = bisect_left(looked, due + slack)
        # It sends one entry at each turn, so those that are due with it take it some turns more.
        return looked[place] + timedelta(seconds=0.2) if place < len(looked) - TURNS else None

    def next(self, last: datetime, asked: datetime, end: datetime) -> tuple[datetime | None, float]:
        """Return when an entry is due next, asked as Celery asks, and for how long it wants to rest."""
        wait = 0.0
        while asked <= end:
            self.clock.now = asked
            due, wait = self.schedule.is_due(self.local(last))
            if due:
                return asked, wait or 0.0
            if wait is None:
                break
            asked += timedelta(seconds=max(wait, 0.000_001))
        return None, 0.0

    def due(self, last: datetime, moment: datetime) -> bool:
        """Return whether an entry is due at a moment."""
        self.clock.now = moment
        return bool(self.schedule.is_due(self.local(last))[0])

    def local(self, moment: datetime) -> datetime:
        """Return a moment as beat has it, which takes a schedule's own word for what time it is."""
        now, self.clock.now = self.clock.now, moment
        shown: datetime = self.schedule.now()
        self.clock.now = now
        return shown
