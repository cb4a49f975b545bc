"""Celery workers and beats with a broker in Redis and leases elsewhere: what runs together, what is sent."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.support.beats import Replicas, entry
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "ministack"])
def test_duplicates_are_skipped_on_two_workers(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of ten messages at once on two workers, one runs at a time and the others are skipped."""
    found = request.getfixturevalue("sqlite_url" if kind == "sqlite" else kind)
    url = found if isinstance(found, str) else found.url
    key = uuid4().hex
    with Rig(tmp_path, store=url) as rig:
        rig.start(2)
        results = [rig.send("probe", key, seconds=1.0) for _ in range(10)]
        states = rig.states(results)
        runs = sorted(rig.runs(key), key=lambda run: run.started)

    assert states.count("SUCCESS") == len(runs) >= 1
    assert states.count("REVOKED") == 10 - len(runs)
    assert all(earlier.last_seen <= later.started for earlier, later in pairwise(runs))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "ministack"])
def test_three_beats_send_each_tick_once(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Three beats, one of which is killed, send every due tick once and miss none."""
    found = request.getfixturevalue("sqlite_url" if kind == "sqlite" else kind)
    name = uuid4().hex
    with Replicas(tmp_path) as replicas:
        replicas.settings |= {"singleflight_url": found if isinstance(found, str) else found.url}
        replicas.settings["singleflight_beat_ttl"] = 1
        replicas.schedule = {name: entry(name, 2.0)}
        first, *_ = [replicas.start() for _ in range(3)]
        until(lambda: len(replicas.mailbox.of(name)) >= 1, 60, "a tick")
        first.kill()
        until(lambda: len(replicas.mailbox.of(name)) >= 4, 60, "four ticks")
        replicas.stop()
        ids = [message.task_id for message in replicas.mailbox.of(name)]
        steps = replicas.steps(name)

    # Killed between publishing and confirming, the first one's tick is sent again under its own id.
    assert len(ids) <= len(set(ids)) + 1
    # A tick that only the dead one knew of is late.
    assert [step for step in steps if not 2.0 <= step < 4.0][1:] == [], steps
