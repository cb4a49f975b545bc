"""Interleaved measuring: a noisy machine is noisy for every variant alike."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(slots=True)
class Times:
    """All that was measured of one variant, in microseconds."""

    wall: list[float] = field(default_factory=list)
    """Each call."""
    cpu: list[float] = field(default_factory=list)
    """This process's own time, as a mean of each round: what a busy machine disturbs least."""
    medians: list[float] = field(default_factory=list)
    """The median of each round."""

    @property
    def spread(self) -> float:
        """How far the rounds' medians lie apart: their interquartile range by their median."""
        if len(self.medians) < 2:  # noqa: PLR2004
            return 0.0
        low, middle, high = statistics.quantiles(self.medians, n=4)
        return (high - low) / middle


def shuffled(names: Iterable[str]) -> list[str]:
    """Return the names in a new order."""
    order = list(names)
    random.shuffle(order)
    return order


def interleave(
    variants: Mapping[str, Callable[[int], object]], *, rounds: int, calls: int
) -> dict[str, Times]:
    """Call every variant ``calls`` times a round, in a new order each round; calls are numbered."""
    times: dict[str, Times] = defaultdict(Times)
    number = 0
    for _ in range(rounds):
        for name in shuffled(variants):
            call, own = variants[name], []
            cpu = time.process_time()
            for _ in range(calls):
                number += 1
                began = time.perf_counter_ns()
                call(number)
                own.append((time.perf_counter_ns() - began) / 1000)
            times[name].cpu.append((time.process_time() - cpu) / calls * 1e6)
            times[name].wall += own
            times[name].medians.append(statistics.median(own))
    return times


def quantile(values: Iterable[float], part: float) -> float:
    """Return the value below which ``part`` of all lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def ratio(values: list[float], base: list[float]) -> float:
    """Return the median of the rounds' ratios: each round is compared with itself."""
    return statistics.median(one / other for one, other in zip(values, base, strict=True))
