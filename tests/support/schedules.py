"""Schedules of every kind that users have, each made anew for every beat that is to have it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


class ByDayOnly:
    """A class with `is_due` only, and what Celery itself puts there or asks for: no `remaining_estimate`."""

    app: Any = None

    def __init__(self, every: float) -> None:
        """Have it due when the last run is ``every`` seconds ago."""
        self.every = every

    def now(self) -> datetime:
        """Return the app's now, as `BaseSchedule` does."""
        now: datetime = self.app.now()
        return now

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        """Return a bare tuple, as the documentation of Celery allows."""
        left = self.every - _since(last_run_at, self.now())
        return (False, left) if left > 0 else (True, self.every)


class Delayed(schedule):
    """An interval with a ``nowfun`` of its own, of a clock that is an hour behind."""

    def __init__(self, every: float) -> None:
        """Be due every so many seconds of that clock."""
        super().__init__(every, nowfun=self.behind)

    def behind(self) -> datetime:
        """Return what that clock shows."""
        now: datetime = self.app.now()
        return now.astimezone(UTC) - timedelta(hours=1)


class Impatient(BaseSchedule):
    """A schedule whose `is_due` names a `next` of its own, sooner than it will be due."""

    def __init__(self, every: float, look: float, **options: Any) -> None:
        """Have it due when the last run is ``every`` seconds ago, and asked again in ``look`` seconds."""
        super().__init__(**options)
        self.every, self.look = every, look

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Name the same `next` whatever the answer."""
        return schedstate(_since(last_run_at, self.now()) >= self.every, self.look)


class Flagged(schedule):
    """A schedule that asks something outside, here a flag that is up in every other span of time."""

    def __init__(self, look: float, span: float, **options: Any) -> None:
        """Look every ``look`` seconds; the flag is up for ``span`` seconds and down for as long."""
        super().__init__(look, **options)
        self.look, self.span = look, span

    def up(self, moment: datetime) -> bool:
        """Return whether the flag is up at a moment."""
        return (moment - EPOCH) // timedelta(seconds=self.span) % 2 == 1

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Say that it is due while the flag is up, whenever the last run was."""
        del last_run_at
        return schedstate(self.up(self.now()), self.look)


class Failing(schedule):
    """A schedule whose `is_due` raises in every other span of time."""

    def __init__(self, every: float, span: float, **options: Any) -> None:
        """Be an interval that fails for ``span`` seconds and works for as long."""
        super().__init__(every, **options)
        self.span = span

    def is_due(self, last_run_at: datetime) -> Any:
        """Fail, or answer as an interval does."""
        if (self.now() - EPOCH) // timedelta(seconds=self.span) % 2 == 1:
            raise ConnectionError("the database with the schedule is away")
        return super().is_due(last_run_at)


def _since(last: datetime, now: datetime) -> float:
    # Between two moments of one zone Python counts by the wall clock.
    return (now.astimezone(UTC) - last.astimezone(UTC)).total_seconds()


LENIENT = ("impatient", "flagged", "failing")
"""Kinds that are due at no moment that can be named beforehand: whoever asks first finds out first."""


KINDS = (
    "by day only",
    "clocked",
    "crontab",
    "failing",
    "flagged",
    "impatient",
    "interval",
    "nowfun",
    "relative",
    "rrule",
    "solar",
    "zoned",
)


def any_schedule(
    rng: Random, now: datetime, scale: float, *, only: str = ""
) -> tuple[str, Callable[[], Any] | None]:
    """Return a random kind of schedule, and what makes one; ``scale``: seconds between ticks, roughly."""
    every = round(scale * rng.uniform(0.4, 2.5), rng.choice((0, 3, 6))) or 1.0
    kinds: dict[str, Callable[[], Any]] = {
        "interval": lambda: schedule(every),
        "relative": lambda: schedule(timedelta(seconds=max(1, round(every))), relative=True),
        "crontab": _any_crontab(rng, scale),
        "nowfun": lambda: Delayed(every),
        "by day only": lambda: ByDayOnly(every),
        "impatient": lambda: Impatient(every, every / 3),
        "flagged": lambda: Flagged(every, every * 4),
        "failing": lambda: Failing(every, every * 3),
        **_of_others(rng, now, every),
    }
    # In one heap with others, which Celery orders by the clock of each, a clock of its own holds them up.
    kind = rng.choice(sorted(set(kinds) - {"nowfun"}))
    return (only, kinds.get(only)) if only else (kind, kinds[kind])


def _any_crontab(rng: Random, scale: float) -> Callable[[], crontab]:
    often = ("*", "*/2") if scale < 3600 else ()
    minute = rng.choice((*often, "*/7", "0,1,30", "59", "0"))
    hour = "*" if scale < 3600 else rng.choice(("*", "*/5", "2", "2,3", "0,12"))
    day = "*" if scale < 86400 else rng.choice(("*", "mon", "sun", "1-5"))
    return lambda: crontab(minute, hour, day_of_week=day)


def zoned(minute: str, hour: str, zone: ZoneInfo) -> Any:
    """Return django's crontab of a zone, on the app's clock: its own reads the machine's."""
    from django_celery_beat.tzcrontab import TzAwareCrontab

    class Zoned(TzAwareCrontab):
        def nowfunc(self) -> datetime:
            found: datetime = self.app.now().astimezone(self.tz)
            return found

    return Zoned(minute, hour, tz=zone)


def _of_others(rng: Random, now: datetime, every: float) -> dict[str, Callable[[], Any]]:
    """Return what packages that need not be installed have to offer."""
    found: dict[str, Callable[[], Any]] = {}
    now = now.astimezone(UTC)  # in another zone, what others have to offer would count by the wall clock
    begin, step = now - timedelta(seconds=rng.randrange(1, 100)), max(1, round(every))
    try:
        from redbeat.schedules import rrule
    except ImportError:
        pass
    else:
        until = rng.choice((None, now + timedelta(seconds=5 * step)))
        found["rrule"] = lambda: rrule("SECONDLY", dtstart=begin, interval=step, until=until)
    with suppress(ImportError):
        import ephem  # noqa: F401 - need not be there

        place = rng.uniform(-60, 60), rng.uniform(-180, 180)
        event = rng.choice(("sunrise", "sunset", "solar_noon", "dawn_civil"))
        found["solar"] = lambda: solar(event, *place)
    try:
        import django_celery_beat.tzcrontab  # noqa: F401 - need not be there
        from django_celery_beat.clockedschedule import clocked
    except ImportError:
        return found
    found["clocked"] = lambda: clocked(now + timedelta(seconds=step))

    zone = ZoneInfo(rng.choice(("America/St_Johns", "Asia/Kathmandu", "Europe/Berlin")))
    minute, hour = rng.choice(("*/3", "*/7", "30")), "*" if every < 3600 else rng.choice(("*", "2,3"))
    found["zoned"] = lambda: zoned(minute, hour, zone)
    return found
