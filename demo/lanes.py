"""Where everything in the picture goes: a lane for each process, and moments from left to right; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demo.facts import Facts

WIDTH, LEFT, RIGHT, TOP = 1480, 200, 36, 138
LANE, GAP = 32, 30
"""Height of a lane, and the space for the name of a group of lanes."""

GROUPS = {
    "beat": "BEAT REPLICAS: EACH TICK IS SENT BY ONE OF THEM",
    "users": "USERS: TEN CLICKS FOR EACH ACCOUNT, TWICE; THREE FILES",
    "worker": "WORKERS: A LANE FOR EACH PROCESS OF THEIR POOLS",
}


@dataclass(frozen=True, slots=True)
class Lane:
    """One process, and the height of its line."""

    process: str
    pid: int
    """0 where all processes of that name share the lane."""
    y: float

    @property
    def name(self) -> str:
        """What stands before the lane."""
        return f"{self.process}, pid {self.pid}" if self.pid else self.process


class Layout:
    """The lanes of one demo, and its scale."""

    def __init__(self, facts: Facts) -> None:
        """Give every process that left a trace its lane."""
        self.lanes: list[Lane] = []
        self.groups: list[tuple[str, float]] = []
        y = float(TOP)
        for kind, title in GROUPS.items():
            y += GAP
            self.groups.append((title, y - 9))
            for process, pid in _members(facts, kind):
                self.lanes.append(Lane(process, pid, y + LANE / 2))
                y += LANE
        self.bottom = y + 8
        self.start, self.end = _span(facts)
        self.scale = (WIDTH - LEFT - RIGHT) / (self.end - self.start)

    def x(self, at: float) -> float:
        """Return where a moment is, from left to right."""
        return LEFT + (at - self.start) * self.scale

    def y(self, process: str, pid: int = 0) -> float:
        """Return the height of a process's line; beats and users have one for all their pids."""
        return next(lane.y for lane in self.lanes if lane.process == process and lane.pid in (0, pid))


def _members(facts: Facts, kind: str) -> list[tuple[str, int]]:
    if kind == "worker":
        seen = [(body.process, body.pid) for body in facts.bodies.values()]
        seen += [(said.process, said.pid) for said in facts.said]
        # Sorted by worker; within one, by first trace, so that a replacement stands below those before it.
        found = sorted(dict.fromkeys(seen), key=lambda member: member[0])
        return [member for member in found if member[0].startswith(kind)]
    return [(name, 0) for name in facts.up if name.startswith(kind)]


def _span(facts: Facts) -> tuple[float, float]:
    ends = [body.ended for body in facts.bodies.values() if body.ended is not None]
    moments = [sent.at for sent in facts.sent] + [said.at for said in facts.said] + ends
    start = min(moments, default=0.0)
    return start, max([start + 1, *moments]) + 0.4
