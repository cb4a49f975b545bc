"""The shortest part found of a history that is still wrong in the same way; pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.torture.history import Body, History, Request
    from tests.torture.judge import Fault

TRIES = 400
"""How many parts are judged at most."""


def shrink(history: History, fault: Fault, judge: Callable[[History], Sequence[Fault]]) -> History:
    """Leave out other keys, then what came after, then as much as can be left out of the rest.

    A part counts only while the judge says of it that the same rule is broken by the same event: whoever
    leaves out a grant makes its release wrong, which would be another fault.
    """

    def wrong(part: History) -> bool:
        return any((one.rule, one.key, one.at) == (fault.rule, fault.key, fault.at) for one in judge(part))

    part = history.only(lambda one: one.key == fault.key)
    part = replace(part, sent=tuple(one for one in history.sent if one.key == fault.key))
    part = replace(part, ticks=tuple(one for one in history.ticks if one.entry == fault.key))
    loose = replace(part, about={**part.about, "part": True})
    part = loose if wrong(loose) else part
    early = part.only(lambda one: _begin(one) <= fault.at)
    part = early if wrong(early) else part
    tokens = _deliveries(part)
    tries, size = TRIES, max(1, len(tokens) // 2)
    while size and tries > 0:
        start = 0
        while start < len(tokens) and tries > 0:
            out = set(tokens[start : start + size])
            tries -= 1
            smaller = part.only(lambda one, out=out: _delivery(one) not in out)
            if wrong(smaller):
                part, tokens = smaller, [one for one in tokens if one not in out]
            else:
                start += size
        size //= 2
    return part


def _begin(one: Request | Body) -> float:
    return getattr(one, "called", None) or getattr(one, "started", 0.0)


def _delivery(one: Request | Body) -> str:
    """Return what belongs together: all requests of one token, and the body under its fence."""
    asked = getattr(one, "asked", None)
    return str(asked["token"]) if asked else f"body {one.id}"


def _deliveries(history: History) -> list[str]:
    """Return all deliveries, the last first: they matter least to what comes before."""
    times = {_delivery(one): _begin(one) for one in (*history.requests, *history.bodies)}
    return sorted(times, key=times.__getitem__, reverse=True)
