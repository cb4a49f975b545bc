"""What the log says, as values: who sent what, which bodies ran from when to when, who was killed; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class Body:
    """One execution of a task's body."""

    body: str
    """Names this execution; made afresh for each."""
    task: str
    key: str
    run: str
    process: str
    pid: int
    fence: int
    started: float
    ended: float | None = None
    """When its end was written, or else when its process was killed; None if neither is known."""
    how: str = ""
    """``returned``, the name of an exception, ``killed``, or nothing yet."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message published by a beat or by the users, as their own process wrote it, before the fact."""

    at: float
    task: str
    key: str
    run: str
    process: str
    slot: int
    """Number of the interval on the clock: a tick is due at the beginning of each."""

    @property
    def by_beat(self) -> bool:
        """Whether it is a tick of the schedule."""
        return self.process.startswith("beat")


@dataclass(frozen=True, slots=True)
class Said:
    """One thing the product's listener said in a worker: ``skipped``, ``deferred``, ``took_over``, ..."""

    at: float
    kind: str
    task: str
    run: str
    process: str
    pid: int
    text: str


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL that the demo sent."""

    at: float
    process: str
    pid: int


@dataclass(slots=True)
class Facts:
    """All of it, in the order it was written."""

    up: list[str] = field(default_factory=list)
    """The processes that were started, as they came up."""
    bodies: dict[str, Body] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    opened: tuple[float, int] | None = None
    """When all processes were up, and the first slot whose tick is due after that."""
    closed: tuple[float, int] | None = None
    """When the beats were stopped, and the last slot whose tick was due before."""

    def add(self, lines: Iterable[dict[str, Any]]) -> None:
        """Take in more lines of the log."""
        for line in lines:
            self._add(**line)

    def _add(self, event: str, at: float, process: str, pid: int, **more: Any) -> None:
        match event:
            case "up":
                self.up.append(more["whom"])
            case "start":
                body = Body(process=process, pid=pid, started=at, **more)
                self.bodies[body.body] = body
            case "end":
                body = self.bodies[more["body"]]
                body.ended, body.how = at, more["how"]
            case "sent":
                self.sent.append(Sent(at=at, process=process, **more))
            case "said":
                self.said.append(Said(at=at, process=process, pid=pid, **more))
            case "kill":
                self._kill(Kill(at, more["whom"], more["victim"]))
            case "open":
                self.opened = at, more["slot"]
            case "close":
                self.closed = at, more["slot"]

    def _kill(self, kill: Kill) -> None:
        self.kills.append(kill)
        for body in self.bodies.values():
            if body.pid == kill.pid and body.ended is None:
                body.ended, body.how = kill.at, "killed"

    def victim(self, kill: Kill) -> Body | None:
        """Return the body that a kill cut off, if it met one."""
        cut = [body for body in self.bodies.values() if body.pid == kill.pid and body.how == "killed"]
        return cut[0] if cut else None

    def running(self) -> list[Body]:
        """Return the bodies that have begun and not ended, by start."""
        return [body for body in self.bodies.values() if body.ended is None]

    def runs_said(self, kind: str) -> dict[str, float]:
        """Return the runs of which a worker's listener said this, and when it first did."""
        found: dict[str, float] = {}
        for said in self.said:
            if said.kind == kind and said.process.startswith("worker"):
                found.setdefault(said.run, said.at)
        return found

    def unfinished(self) -> set[str]:
        """Return the published runs that have neither returned nor been skipped."""
        returned = {body.run for body in self.bodies.values() if body.how == "returned"}
        return {sent.run for sent in self.sent} - returned - set(self.runs_said("skipped"))
