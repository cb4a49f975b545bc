"""How soon a table that throttles is asked again by those who can wait."""

from __future__ import annotations

import random

from singleflight.lease import monotonic

SHORTEST, LONGEST = 0.05, 2.0
"""Seconds: the first pause after a refusal, and the longest one; each refusal doubles it."""


class Pace:
    """The pause that a process keeps towards one table: a refusal doubles it, an answer halves it.

    It is one for all threads, because each of them alone would ask more often than before: it would try
    again what was refused. Races between threads make a pause a little longer or shorter, and that is all.
    """

    def __init__(self) -> None:
        self._pause = 0.0
        self._until = 0.0

    @property
    def left(self) -> float:
        """Seconds for which nobody is to ask who can wait; not the same for all, or all would ask at once."""
        left = self._until - monotonic()
        return left * random.uniform(1, 1.5) if left > 0 else 0.0  # noqa: S311 - spreads requests, guards nothing

    def refused(self) -> None:
        """Note that a request was throttled."""
        self._pause = min(max(2 * self._pause, SHORTEST), LONGEST)
        self._until = monotonic() + self._pause

    def answered(self) -> None:
        """Note that a request was answered."""
        if self._pause:
            self._pause = self._pause / 2 if self._pause > SHORTEST else 0.0
