"""Random histories of a line: whatever goes wrong, no run is lost, passed, started twice or left for ever."""

from __future__ import annotations

import os

import pytest

from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock
from tests.stores.line_walks import CONFIGS, walk
from tests.stores.line_world import REMEMBER, World

HISTORIES = 10_000 if os.environ.get("SINGLEFLIGHT_CHAOS") else 500
"""Walks in all, shared by the configurations."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CONFIGS)
def test_no_history_breaks_a_line_in_memory(name: str) -> None:
    """Nobody overlaps, is lost, passed, stuck or left, in random walks with every fault there is."""
    for seed in range(HISTORIES // len(CONFIGS) + 1):
        clock = FakeClock()
        store = MemoryStore(clock=clock, remember=REMEMBER)
        walk(World(store, clock, CONFIGS[name], "singleflight:key"), seed)
