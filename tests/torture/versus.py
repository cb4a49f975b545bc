"""The table of other libraries' locks and ours, by one load, one nemesis and one judge."""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.child import Child
from tests.support.commands import import_path
from tests.torture.body import make_table
from tests.torture.client import READY
from tests.torture.journal import Journal, gathered
from tests.torture.judge import overlaps
from tests.torture.nemesis import Nemesis, plan
from tests.torture.peers import PEERS
from tests.torture.stores import Target

if TYPE_CHECKING:
    from tests.torture.history import History

TTL, CLIENTS = 2.0, 6
LOADS = {"bodies shorter than the ttl": 0.5, "some bodies longer than the ttl": 1.5}
"""The longest body, in ttls."""
FAULTS = ("kill", "stop", "hold")


def versus(*, seconds: float, seed: int) -> None:
    """Print the table."""
    print("| library | load | deeds | bodies | overlaps | longest wait for a free key, s |")
    print("|---|---|---|---|---|---|", flush=True)
    for load, longest in LOADS.items():
        for name in PEERS:
            with tempfile.TemporaryDirectory(prefix="torture-peer-") as folder:
                history, deeds = _run(name, longest * TTL, seconds, seed, Path(folder))
            found = len(list(overlaps(history)))
            row = (name, load, deeds, len(history.bodies), found, f"{_longest_idle(history):.1f}")
            print(f"| {' | '.join(map(str, row))} |", flush=True)


def _run(name: str, longest: float, seconds: float, seed: int, folder: Path) -> tuple[History, int]:
    make_table(folder)
    journal = Journal(folder, "nemesis")
    with Target("valkey") as target:
        children = [
            Child(
                [
                    *(sys.executable, "-m", "tests.torture.peers", name, target.urls[number % 2], folder),
                    *(f"client{number}", seed, TTL, longest),
                ],
                log=folder / f"client{number}.log",
                ready=READY,
                env=import_path(folder),
            )
            for number in range(CLIENTS)
        ]
        nemesis = Nemesis(plan(seed, seconds, FAULTS, TTL), children, target, folder / "clocks", journal)
        try:
            for child in children:
                child.wait_ready()
            nemesis.start()
            time.sleep(seconds)
            nemesis.stop()
            (folder / "over").touch()
            time.sleep(2 * TTL)
        finally:
            for child in children:
                child.kill()
    return gathered(folder), len(nemesis.done)


def _longest_idle(history: History) -> float:
    """Return the longest time for which nobody had a key that all asked for again and again."""
    idle = [0.0]
    for key in history.keys:
        own = sorted((body for body in history.bodies if body.key == key), key=lambda body: body.started)
        idle += [later.started - earlier.seen for earlier, later in pairwise(own)]
        idle.append(max(body.seen for body in history.bodies) - max(body.seen for body in own))
    return max(idle)
