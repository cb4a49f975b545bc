"""Replicas of `celery beat --scheduler singleflight` through every fault at once, judged by the wire."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.beats import Replicas, entry
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("SINGLEFLIGHT_BEAT_SECONDS", "30"))
"""How long the faults are spread over; with 60 or more the times on the wire are judged too."""

EVERY = {"two": 2.0, "three": 3.0}


@pytest.mark.timeout(SECONDS + 120)
def test_each_tick_is_sent_once_through_kills_a_pause_and_an_outage(tmp_path: Path) -> None:
    """Three replicas die at every point, one is paused, the store stalls: each due tick is sent once."""
    with Replicas(tmp_path) as replicas:
        replicas.settings |= {
            "singleflight_beat_scheduler": "tests.support.beat_app:Mortal",
            "singleflight_beat_ttl": 1,
        }
        replicas.schedule = {name: entry(name, every) for name, every in EVERY.items()}
        replicas.schedule["cron"] = entry("cron", ["*"] * 5)
        launched = datetime.now(UTC)
        first, second, _ = (replicas.start() for _ in range(3))
        began, zero = datetime.now(UTC), time.monotonic()
        delays = []

        def after(part: float, *, delays_a_tick: bool = False) -> None:
            time.sleep(max(0.0, zero + part * SECONDS - time.monotonic()))
            if delays_a_tick:
                delays.append(time.monotonic())

        after(1 / 8)
        first.kill()
        first.start()
        for part, point in ((2 / 8, "claimed two"), (3 / 8, "published three")):
            after(part, delays_a_tick=True)
            replicas.death.write_text(point)
            dead = until(lambda: next((one for one in replicas.beats if not one.alive), None), what=point)
            dead.start()
        after(4 / 8)
        second.send(signal.SIGSTOP)
        after(4 / 8 + 1 / 6)
        second.send(signal.SIGCONT)
        after(6 / 8, delays_a_tick=True)
        replicas.store.pause()
        after(6 / 8 + 1 / 12, delays_a_tick=True)
        replicas.store.resume()
        after(1)
        ended = datetime.now(UTC)
        replicas.stop()
        stopped = datetime.now(UTC)
        ticks, sent = replicas.claimed(), {name: replicas.mailbox.of(name) for name in (*EVERY, "cron")}
        steps = {name: replicas.steps(name) for name in EVERY}

    ids = {name: [message.task_id for message in messages] for name, messages in sent.items()}
    assert len(ids["three"]) == len(set(ids["three"])) + 1, "the one who published died before confirming"
    # A kill or the pause may hit another replica just there too, though hardly more than once.
    assert len(ids["two"]) <= len(set(ids["two"])) + 1
    minutes = sorted(ticks[one].at.replace(second=0, microsecond=0) for one in ids["cron"])
    assert minutes == sorted(set(minutes))
    # A full minute that falls into the start or the stop of the replicas may be sent, and need not be.
    assert set(full_minutes(began, ended)) <= set(minutes) <= set(full_minutes(launched, stopped))
    for name, every in EVERY.items():
        # No two are closer than a period. What the outage swallowed is made up for once; who dies between
        # claim and publishing makes its tick late by the ttl.
        assert all(every <= step < SECONDS / 12 + 2 * every for step in steps[name]), steps
        assert len([step for step in steps[name] if step >= every + 1 + 0.5]) <= 2, steps
        if SECONDS >= 60:
            once = list({message.task_id: message for message in reversed(sent[name])}.values())[::-1]
            # Late by the ttl or the outage, a tick makes the gap after it shorter.
            quiet = [
                later.at - earlier.at
                for earlier, later in pairwise(once)
                if not any(earlier.at - every - 2 < delay < later.at for delay in delays)
            ]
            assert len(quiet) > SECONDS / every / 3
            assert [gap for gap in quiet if abs(gap - every) >= 0.5] == []


def full_minutes(began: datetime, ended: datetime) -> list[datetime]:
    """Return the full minutes between two moments."""
    minute = began.replace(second=0, microsecond=0)
    found = []
    while (minute := minute + timedelta(minutes=1)) < ended:
        found.append(minute)
    return found
