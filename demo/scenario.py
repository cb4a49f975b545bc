"""What the demo plays: who does what, when, and what must come of it; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

INTERVAL = 2.0
"""Seconds between two ticks of the schedule; ticks are due on the clock, as with a crontab."""

TTL = 3.0
"""Seconds that a lease outlives a dead holder: short, so that a take-over is seen."""

BEATS, WORKERS, POOL = 3, 2, 3
"""Beat replicas, workers, and pool processes of each worker."""

ACCOUNTS, CLICKS, CLICK_PAUSE = 3, 10, 0.2
"""Every account's user presses the button so often, so many seconds apart."""

FILES = 3
"""Uploads that come at once and must be imported one after another, all of them."""

SHORTEST = 12
"""Seconds below which the kills and what follows them would not fit."""

KILL_BEAT_AT, KILL_CHILD_AT = 1 / 3, 2 / 3
"""When a beat replica and a pool process are killed, as shares of the whole."""

EARLIEST, LATEST = 0.8, 2.2
"""Seconds into a report between which its process is killed: in the middle of a run."""

SETTLING = 45.0
"""Seconds after the last tick for what is under way to come to its end."""


@dataclass(frozen=True, slots=True)
class Work:
    """One task of the demo: how long its body takes, and what may become of a duplicate."""

    task: str
    seconds: float
    duplicates: Literal["skip", "coalesce", "defer"]


REPORT = Work("report", 3.2, "skip")
"""Sent by every tick, and slower than the ticks come."""
RECALCULATE = Work("recalculate", 1.0, "coalesce")
IMPORT = Work("import_file", 1.2, "defer")
WORKS = {work.task: work for work in (REPORT, RECALCULATE, IMPORT)}


def label(task: str, kwargs: dict[str, object]) -> str:
    """Name the work that must not run twice, as people see it: the demo's own idea of the key."""
    return f"account {kwargs['account_id']}" if task == RECALCULATE.task else task


@dataclass(frozen=True, slots=True, order=True)
class Act:
    """Something a user does, so many seconds after the start."""

    at: float
    task: str
    argument: str


def acts(seconds: float) -> list[Act]:
    """Return what the users do in a demo of so many seconds, in order."""
    found = []
    for share in (0.08, 0.48):
        for account in range(1, ACCOUNTS + 1):
            first = share * seconds + 0.3 * account
            found += [Act(first + n * CLICK_PAUSE, RECALCULATE.task, str(account)) for n in range(CLICKS)]
    found += [Act(0.36 * seconds + 0.12 * n, IMPORT.task, f"prices-{n + 1}.csv") for n in range(FILES)]
    return sorted(found)
