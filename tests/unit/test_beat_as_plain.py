"""What our beat sends, beside what plain Celery beat sends, over random schedules and random clocks.

`SINGLEFLIGHT_BEAT_SCHEDULES` says how many schedules are tried; 2,000 take some minutes.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import celery
import pytest

from tests.support.beat_simulation import KINDS, Trial, crowded, faults, simulate
from tests.support.schedules import zoned

SCHEDULES = int(os.environ.get("SINGLEFLIGHT_BEAT_SCHEDULES", "20"))
AT_ONCE = 5
"""How many of them are one test."""

pytestmark = [
    pytest.mark.skipif(celery.VERSION < (5, 7), reason="older Celery asks too early, and floods"),
    pytest.mark.timeout(120),
]


@pytest.mark.parametrize("first", range(0, SCHEDULES, AT_ONCE))
def test_one_replica_sends_what_plain_beat_sends_and_three_double_and_lose_none(first: int) -> None:
    """Over random schedules one replica sends the same at the same instants; three send what one would."""
    for seed in range(first, first + AT_ONCE):
        trial = Trial(seed)
        ours, plain = simulate(trial), simulate(trial, plain=True)

        assert crowded(trial, ours) == [], trial
        if plain.flooded:
            continue
        assert ours.sent() == plain.sent(), trial
        assert faults(trial, simulate(trial, replicas=3)) == [], trial


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_of_any_kind_is_sent_as_plain_beat_sends_it(kind: str) -> None:
    """Celery's own, those of other packages and those of a user: each is asked as Celery asks it."""
    trial = Trial(len(kind), only=kind)
    if not trial.entries:
        pytest.skip(f"{kind} needs a package: pip install ephem celery-redbeat django-celery-beat")
    sent = simulate(trial).sent()

    assert sent == simulate(trial, plain=True).sent()
    assert sent
    assert faults(trial, simulate(trial, replicas=3)) == []


def test_a_crontab_is_sent_once_a_minute_where_plain_beat_floods() -> None:
    """In the hour that autumn repeats, one of another zone that is late is due whenever it is asked."""
    pytest.importorskip("django_celery_beat", reason="type: pip install django-celery-beat")
    trial = Trial(1673)  # whose beat oversleeps in that hour
    trial.zone, trial.start = "UTC", datetime(2026, 10, 25, 0, 0, 2, tzinfo=UTC)
    trial.scale, trial.longest, trial.seconds = 900.0, 300.0, 7200.0
    trial.kinds = {"zoned 0": "zoned"}
    trial.entries = {"zoned 0": lambda: zoned("*/3", "*", ZoneInfo("Europe/Berlin"))}
    ours = simulate(trial)

    assert simulate(trial, plain=True).flooded
    assert len(ours.sent()) > len(range(0, 120, 3)) // 2
    assert crowded(trial, ours) == []
    assert crowded(trial, simulate(trial, replicas=3)) == []
