"""Options of beat's entries, with real beats: what was missed while all were down, and jitter."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.beats import Replicas, entry, twice
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

DOWN = 8.0
OPTIONS = {
    "all": {"catch_up": "all", "catch_up_window": 3600},
    "windowed": {"catch_up": "all", "catch_up_window": 4},
    "latest": {},
    "none": {"catch_up": "none"},
    "jitter": {"jitter": 1.5, "catch_up": "all", "catch_up_window": 3600},
}


@pytest.mark.timeout(180)
def test_what_was_missed_is_made_up_for_as_each_entry_asks(tmp_path: Path) -> None:
    """Two beats run, are killed, and two others come: where each counts, planned times are a period apart."""
    with Replicas(tmp_path) as replicas:
        replicas.settings |= {"singleflight_beat_ttl": 1, "singleflight_beat_entries": OPTIONS}
        replicas.schedule = {name: entry(name, 2.0) for name in OPTIONS}
        first = [replicas.start() for _ in range(2)]
        until(lambda: all(len(replicas.mailbox.of(name)) >= 2 for name in OPTIONS), what="two ticks of each")
        for name in OPTIONS:
            replicas.wait_confirmed(name)
        for beat in first:
            beat.kill()
        time.sleep(DOWN)
        for _ in range(2):
            replicas.start()
        before = {name: len(replicas.mailbox.of(name)) for name in OPTIONS}
        until(lambda: all(len(replicas.mailbox.of(name)) > before[name] + 3 for name in OPTIONS), what="more")
        time.sleep(5)
        replicas.stop()
        steps = {name: replicas.steps(name) for name in OPTIONS}
        sent = {name: replicas.mailbox.of(name) for name in OPTIONS}
        logs = "".join(beat.log() for beat in replicas.beats)

    for name in ("all", "jitter"):
        assert set(steps[name]) == {2.0}, "each planned time is sent"
        # A beat that was killed just between sending and confirming costs a copy.
        assert len(twice(sent[name])) <= 1
    for name in ("windowed", "latest", "none"):
        assert len([step for step in steps[name] if step > 3.5]) == 1, "one gap, where all were down"
    assert max(steps["windowed"]) < max(steps["latest"])
    assert max(steps["none"]) >= DOWN
    assert "windowed: run" in logs
    assert " left out" in logs
    gaps = [later.at - earlier.at for earlier, later in pairwise(sent["jitter"])]
    quiet = [gap for gap in gaps if 0.4 < gap < 3.6]
    assert max(quiet) - min(quiet) > 0.2, "they come at uneven times"
