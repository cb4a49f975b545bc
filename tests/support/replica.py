"""Beat replicas inside this process: a real scheduler on a clock that the test turns, without processes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler

from singleflight.celery import install
from singleflight.celery.beat import SingleflightScheduler
from singleflight.celery.scheduler_mixin import REMEMBER
from singleflight.celery.ticks import Ticks
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from singleflight.stores.base import Store


NOON = datetime(2026, 3, 2, 12, 0, 0, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is turned."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return epoch seconds."""
        return self.now.timestamp()

    def turn(self, step: timedelta) -> None:
        """Let time pass; in UTC, so that no hour is missing or double."""
        self.now = self.now.astimezone(UTC) + step


@dataclass(frozen=True, slots=True)
class Posted:
    """One message that a replica published."""

    at: datetime
    name: str
    task_id: str
    headers: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else the message was published with."""


class FakeTimeApp(Celery):
    """An app whose schedules go by a `Clock`."""

    clock: Clock

    def now(self) -> datetime:
        """Return what Celery's schedules take for now."""
        return self.clock.now.astimezone(self.timezone)


class OrderedEntry(ScheduleEntry):
    """Celery's entry; of two that are due at one instant the first is by name, and not by chance."""

    def __lt__(self, other: Any) -> bool:
        return bool(self.name < other.name)


class Recorder(Scheduler):
    """Celery's scheduler; what it publishes goes to a list, or fails while the list says so."""

    Entry = OrderedEntry
    posted: list[Posted]
    broken: bool = False

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> None:
        """Note a message instead of publishing it."""
        del name, kwargs
        if self.broken:
            raise ConnectionError("the broker is away")
        at, task_id, headers = (
            self.app.clock.now.astimezone(UTC),
            options.pop("task_id", ""),
            options.pop("headers"),
        )
        options.pop("producer", None)
        self.posted.append(Posted(at, args[0], task_id, headers, options))


def _own(schedule: Any) -> Any:
    """Return a schedule that no other replica has: one that a function makes, or a copy."""
    return schedule() if isinstance(schedule, FunctionType) else copy.deepcopy(schedule)


class Replica:
    """One beat on a clock of its own; the store's clock may be another."""

    def __init__(
        self,
        clock: Clock,
        store: Store,
        schedule: Mapping[str, Any],
        posted: list[Posted],
        *,
        zone: str = "UTC",
        wrapped: type[Scheduler] = Recorder,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        app = FakeTimeApp("replica", broker="memory://", set_as_current=False)
        app.clock = clock
        app.conf.update(
            timezone=zone,
            singleflight_beat_scheduler=wrapped,
            beat_schedule={
                name: {
                    "task": "known.only.by_name",
                    "schedule": _own(one),
                    "args": [name],
                    **({"options": dict(options)} if options else {}),
                }
                for name, one in schedule.items()
            },
            **settings,
        )
        assert app.timezone == ZoneInfo(zone)
        install(app, store)
        self.scheduler = SingleflightScheduler(app)
        self.scheduler.posted = posted
        runtime = app.singleflight
        if not runtime.enabled:
            return
        ttl = self.scheduler._ticks._ttl
        self.scheduler._ticks = self.scheduler._due._ticks = Ticks(
            runtime.leases, runtime.prefix, ttl=ttl, clock=clock
        )

    def run(self) -> float:
        """Tick as Celery's loop does, until it would sleep; return for how long."""
        for _ in range(100_000):
            delay = self.scheduler.tick()
            if delay > 0:
                return delay
        raise AssertionError("the scheduler never sleeps")


class Place:
    """Replicas of one app on one clock and one store."""

    def __init__(self, schedule: Mapping[str, Any], now: datetime = NOON, **settings: Any) -> None:
        self.clock = Clock(now)
        self.store_clock = self.clock
        self.store = MemoryStore(remember=REMEMBER, clock=lambda: self.store_clock())  # noqa: PLW0108 - a test may put another in its place
        self.schedule = schedule
        self.settings = settings
        self.posted: list[Posted] = []
        self.replicas: list[Replica] = []

    def start(self, clock: Clock | None = None, **settings: Any) -> Replica:
        """Start one more replica, perhaps on a clock of its own."""
        replica = Replica(
            clock or self.clock, self.store, self.schedule, self.posted, **{**self.settings, **settings}
        )
        self.replicas.append(replica)
        return replica

    def run(self, *, seconds: float = 0.0, step: float = 0.1) -> None:
        """Let all replicas tick, and go on doing so while time passes."""
        for replica in self.replicas:
            replica.run()
        for _ in range(round(seconds / step)):
            self.clock.turn(timedelta(seconds=step))
            for replica in self.replicas:
                replica.run()

    def times(self, name: str) -> list[float]:
        """Return when the entry was sent, in seconds since noon."""
        return [round((one.at - NOON).total_seconds(), 3) for one in self.posted if one.name == name]
