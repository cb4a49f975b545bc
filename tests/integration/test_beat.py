"""Replicas of `celery beat --scheduler singleflight` as real processes, judged by the messages on the wire."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.beats import DEATH, Mailbox, Replicas, gaps, twice
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = float(os.environ.get("SINGLEFLIGHT_BEAT_SECONDS", "30"))
"""Seconds of the test of all faults together; with 60 or more it also judges times."""


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    """Return a place for beat replicas that share a broker and another server as the store."""
    with Replicas(tmp_path) as found:
        yield found


@pytest.mark.timeout(LONG + 120)
def test_each_tick_is_sent_once_through_kills_a_pause_and_an_outage(replicas: Replicas) -> None:
    """Three replicas lose one another at every point, and the store for a while: each due tick is sent once."""
    entries = {"two": 2.0, "three": 3.0}
    replicas.settings |= {
        "singleflight_beat_scheduler": "tests.support.beat_app:Mortal",
        "singleflight_beat_ttl": 1,
    }
    replicas.schedule = {name: entry(name, every) for name, every in {**entries, "cron": ["*"] * 5}.items()}
    began, begin = datetime.now(UTC), time.monotonic()

    def at(part: float) -> float:
        """Wait for a part of the whole time; return that moment."""
        time.sleep(max(0.0, begin + part * LONG - time.monotonic()))
        return time.monotonic()

    first, second, third = (replicas.start() for _ in range(3))
    faults = []
    faults.append(at(0.15))
    first.kill()
    first.start()
    for part, point in ((0.25, "claimed"), (0.4, "published")):
        faults.append(at(part))
        replicas.death.write_text(point)
        dead = until(lambda: [one for one in replicas.beats if not one.alive], what=f"a death when {point}")[
            0
        ]
        dead.start()
    faults.append(at(0.5))
    second.send(signal.SIGSTOP)
    faults.append(at(0.5 + 1 / 6))
    second.send(signal.SIGCONT)
    faults.append(at(0.75))
    replicas.store.pause()
    faults.append(at(0.75 + 1 / 12))
    replicas.store.resume()
    at(1.0)
    ended = datetime.now(UTC)
    replicas.stop()

    due = replicas.due_instants()
    report = {}
    for name, every in entries.items():
        sent = replicas.mailbox.of(name)
        instants = sorted({due[message.task_id] for message in sent})
        steps = [
            (later - earlier).total_seconds() for earlier, later in zip(instants, instants[1:], strict=False)
        ]
        report[name] = {"sent": len(sent), "instants": len(instants), "steps": steps, "gaps": gaps(sent)}
    print(json.dumps(report))
    minutes = [one for one in due.values() if one.second == one.microsecond == 0 and one in set(due.values())]
    crons = replicas.mailbox.of("cron")
    everything = replicas.mailbox.messages
    assert len(twice(everything)) <= 1, "only the death after publishing sends again, and under the same id"
    assert len(everything) - len({message.task_id for message in everything}) <= 1
    for name, every in entries.items():
        # One step is longer: what fell due during the outage is sent once. All others are exactly the period.
        others = [step for step in report[name]["steps"] if step != every]
        assert len(others) <= 1, report
        assert not others or every < others[0] < LONG / 12 + 2 * every + 2, report
    assert {due[message.task_id] for message in crons} == full_minutes(began, ended), minutes
    if LONG >= 60:
        for name, every in entries.items():
            sent = replicas.mailbox.of(name)
            odd = [
                (later.at - begin, later.at - earlier.at)
                for earlier, later in zip(sent, sent[1:], strict=False)
                if abs(later.at - earlier.at - every) > 0.5 and later.task_id != earlier.task_id
            ]
            print(name, "odd gaps", odd, "faults", [fault - begin for fault in faults])
            # A death when claimed delays one tick by the ttl, the outage by its length.
            assert len(odd) <= 4, odd


def entry(name: str, every: object, task: str = "known.only.by_name", **more: Any) -> dict[str, object]:
    """Return a beat entry whose messages can be told by their first argument."""
    return {"task": task, "schedule": every, "args": [name], **more}


def full_minutes(began: datetime, ended: datetime) -> set[datetime]:
    """Return the full minutes between two moments."""
    minute = began.replace(second=0, microsecond=0) + timedelta(minutes=1)
    found = set()
    while minute < ended:
        found.add(minute)
        minute += timedelta(minutes=1)
    return found
