"""The kinds of values that options take: durations and planned times."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

SHORTEST_PAUSE = 0.05


def duration(text: str) -> float:
    """Read seconds, or a number with one of the units ms, s, m, h, d."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration; write seconds, or 500ms, 30s, 5m, 2h, 1d")
    return float(found[1]) * _UNITS[found[2]]


def pause(text: str) -> float:
    """Read how long to leave a store alone between two looks."""
    seconds = duration(text)
    if seconds < SHORTEST_PAUSE:
        raise click.BadParameter(f"{text!r} would keep the store busy; write 50ms or longer")
    return seconds


def time(text: str) -> str:
    """Read a planned time, ISO 8601 with an offset or ``@`` and epoch seconds; equal instants, equal text."""
    try:
        if text.startswith("@"):
            when = datetime.fromtimestamp(float(text[1:]), UTC)
        else:
            when = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is no time; write 2026-01-31T06:00Z, or @1769839200") from None
    if when.utcoffset() is None:
        raise click.BadParameter(f"{text!r} says no time zone; append Z for UTC, or an offset as +02:00")
    return when.astimezone(UTC).isoformat()
