"""Years of beat on a clock that jumps from tick to tick: replicas that are killed, and one that never is."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, available_timezones

from celery.schedules import crontab, schedule, solar

from singleflight.celery.scheduler_mixin import REMEMBER
from singleflight.stores.base import Renewed
from singleflight.stores.memory import MemoryStore
from tests.support.replica import Place, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from singleflight.stores.base import Release, Renewal
    from tests.support.replica import Posted

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
YEARS = 10
TTL = 5.0
SLACK = timedelta(seconds=2)
"""The claim that lapses is looked at again after some time."""
EARLY = 0.011
"""Celery wakes up 10 ms early and asks again and again until the time has come; here it sleeps on."""


def entries() -> dict[str, Callable[[], Any]]:
    """Return what makes each entry's schedule; `solar` needs a package."""
    found: dict[str, Callable[[], Any]] = {
        "daily": lambda: crontab("30", "2"),
        "nights": lambda: crontab("30", "0-3", day_of_week="fri-sun"),
        "interval": lambda: schedule(100_003),
        "relative": lambda: schedule(timedelta(days=1), relative=True),
    }
    if find_spec("ephem"):
        found["sunset"] = lambda: solar("sunset", 52.5, 13.4)
    return found


@cache
def changing_zones() -> dict[tuple[object, ...], list[str]]:
    """Return the zones that change their clocks in these years; those that change alike stand together."""
    found: dict[tuple[object, ...], list[str]] = {}
    for name in sorted(available_timezones()):
        changes = tuple(_changes(ZoneInfo(name)))
        if len(changes) > 1:
            found.setdefault(changes, []).append(name)
    return found


def _changes(zone: ZoneInfo) -> Iterator[tuple[datetime, timedelta | None]]:
    before = None
    for hour in range(YEARS * 366 * 24 // 6):
        moment = BEGIN + timedelta(hours=6 * hour)
        offset = moment.astimezone(zone).utcoffset()
        if offset != before:
            # The hour in these six at which it changed.
            exact = next(
                one
                for back in range(5, -1, -1)
                if (one := moment - timedelta(hours=back)).astimezone(zone).utcoffset() == offset
            )
            yield exact, offset
        before = offset


class Killed(BaseException):
    """The end of a replica in the midst of a tick."""


class Severed(MemoryStore):
    """A store that takes no word of a process that is dead: its leases lapse."""

    dead = False

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__(remember=REMEMBER)
        self.shared = shared
        self.change, self.read = shared.change, shared.read  # type: ignore[method-assign]

    def release(self, release: Release) -> bool:
        """Release, unless the process is dead."""
        return not self.dead and super().release(release)

    def renew(self, renewals: Sequence[Renewal]) -> list[Any]:
        """Renew, unless the process is dead."""
        return [Renewed.LOST for _ in renewals] if self.dead else super().renew(renewals)


class Mortal(Recorder):
    """A scheduler that is killed now and then, just before or just after it has published."""

    chance: random.Random | None = None
    store: Severed

    def send_task(self, *args: Any, **options: Any) -> None:
        """Publish, or be killed."""
        fate = self.chance.random() if self.chance else 1.0
        if fate < 0.005:
            self.store.dead = True
            raise Killed
        super().send_task(*args, **options)
        if fate < 0.01:
            self.store.dead = True
            raise Killed


@dataclass
class Decade:
    """What was sent in these years, and how often a replica was killed."""

    posted: list[Posted]
    kills: int = 0

    def once(self) -> list[Posted]:
        """Return the messages without the copies that a kill between sending and confirming costs."""
        return list({one.task_id: one for one in reversed(self.posted)}.values())[::-1]


def live(zone: str, *, replicas: int = 1, plain: bool = False, years: float = YEARS) -> Decade:
    """Let beats run for years; of several, each is killed now and then and replaced."""
    settings: dict[str, Any] = {"singleflight_enabled": False} if plain else {}
    place = Place(entries(), BEGIN, zone=zone, wrapped=Mortal, beat_max_loop_interval=10**9, **settings)
    chance = random.Random(zone)
    shared = place.store

    def start(number: int) -> None:
        place.store = Severed(shared)
        place.replicas[number:number] = [place.start()]
        place.replicas.pop()
        if replicas > 1:
            place.replicas[number].scheduler.chance = chance
            place.replicas[number].scheduler.store = place.store

    for number in range(replicas):
        start(number)
    decade = Decade(place.posted)
    wakes = [BEGIN] * replicas
    end = BEGIN + timedelta(days=365.25 * years)
    while (now := min(wakes)) <= end:
        number = wakes.index(now)
        place.clock.now = now
        try:
            pause = place.replicas[number].scheduler.tick()
        except Killed:
            pause = None
        if pause is None or (replicas > 1 and chance.random() < 0.001):
            decade.kills += 1
            place.replicas.pop(number)
            start(number)
            pause = chance.uniform(0.0, 600.0)  # until it is up again
        wakes[number] = now + timedelta(seconds=max(0.0, pause) + EARLY)
    return decade


def differences(plain: Decade, ours: Decade) -> list[str]:
    """Return what replicas sent that one immortal plain beat would not have sent, or the reverse.

    A tick whose replica was killed is late by the ttl, by two if the next one was killed as well, and no
    other is: its rhythm goes on as if it had been sent in time.
    """
    found = []
    for name in entries():
        expected = [one.at for one in plain.posted if one.name == name]
        sent = [one.at for one in ours.once() if one.name == name]
        if len(expected) != len(sent):
            found.append(f"{name}: sent {len(sent)} times, not {len(expected)}")
        found += [
            f"{name}: sent at {at}, not at {due}"
            for due, at in zip(expected, sent, strict=False)
            if not -SLACK <= at - due <= timedelta(seconds=2 * TTL) + SLACK
        ]
    return found
