"""Clocks for tests: one that stands still until it is told, and the real one behind the same words."""

from __future__ import annotations

import time


class FakeClock:
    """Epoch seconds that only move when a test says so: ``MemoryStore(clock=FakeClock())``."""

    def __init__(self, start: float = 1_700_000_000.123) -> None:
        # Whole microseconds: sums of floats would drift apart from what a test computes.
        self._us = round(start * 1_000_000)

    def __call__(self) -> float:
        """Return the time."""
        return self._us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"advance({seconds!r}): time does not run backwards; use step_back")
        self._us += round(seconds * 1_000_000)

    def step_back(self, seconds: float) -> None:
        """Set the clock back, as an operator or NTP does to a server."""
        self._us -= round(seconds * 1_000_000)


class RealClock:
    """The clock on the wall, for stores that go by a server's own time."""

    def __call__(self) -> float:
        """Return the time, in epoch seconds."""
        return time.time()

    def advance(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
