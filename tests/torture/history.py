"""What was seen: requests to the store with their answers, and what bodies wrote; read by judges, pure.

Lines are JSON objects. Times are seconds of the machine's monotonic clock, which all its processes share
and which nobody can step. A request has two lines, or one if its process was killed before an answer came.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the store about one key."""

    id: str
    who: str
    what: str
    """`claim`, `renew`, `release`, or what else a store can do."""
    key: str
    asked: dict[str, Any]
    called: float
    returned: float = NEVER
    answer: str = ""
    """`granted`, `busy`, `renewed`, `restored`, `lost`, `ours`, `not ours`; empty if nobody heard one."""
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether it is known what the store made of it."""
        return bool(self.answer)


@dataclass(frozen=True, slots=True)
class Body:
    """One execution of what must not run twice."""

    id: str
    who: str
    key: str
    run: str
    attempt: int
    fence: int
    started: float
    held_until: float
    """The last moment at which its holder said that it held the lease; before the start if it never did."""
    seen: float
    """The end, or else the last sign of life."""
    message: str = ""
    """The id of the message that it came with, as its publisher knows it."""
    how: str = ""
    """`returned`, or the name of an exception; empty if it was killed."""
    refused: tuple[float, ...] = ()
    """When the guarded table refused its fence although it held its lease before and after."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that a publisher was told is on its way."""

    run: str
    task: str
    key: str
    at: float
    promise: str
    """`once`: it runs to its end, or is skipped for a reason that is told; `maybe`: nothing is promised."""
    fate: str = ""
    """Why it does not run, as its worker told: `skipped`, `gave_up` ..."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """One planned time of one beat entry, as a message that reached the broker."""

    entry: str
    due: float
    at: float
    run: str


@dataclass(frozen=True, slots=True)
class History:
    """All that was seen in one run."""

    requests: tuple[Request, ...] = ()
    bodies: tuple[Body, ...] = ()
    sent: tuple[Sent, ...] = ()
    ticks: tuple[Tick, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    """Seed, store, plan: for people, and what the store may do late."""

    @property
    def keys(self) -> list[str]:
        """All keys that were used."""
        return sorted({one.key for one in (*self.requests, *self.bodies)})

    def only(self, keep: Callable[[Request | Body], bool]) -> History:
        """Return the part of it that is kept of requests and bodies; all else stays."""
        return replace(
            self,
            requests=tuple(one for one in self.requests if keep(one)),
            bodies=tuple(one for one in self.bodies if keep(one)),
        )


def read(lines: Iterable[str]) -> History:
    """Make a history of the lines of all processes, in any order."""
    requests: dict[str, Request] = {}
    bodies: dict[str, Body] = {}
    sent: dict[str, Sent] = {}
    ticks: list[Tick] = []
    about: dict[str, Any] = {}
    events = [event for line in lines if (event := _event(line)) is not None]
    for event in sorted(events, key=lambda event: event["at"]):
        match event.pop("event"):
            case "call":
                requests[event["id"]] = Request(**_renamed(event, at="called"))
            case "return" if event["id"] in requests:
                one = requests[event["id"]]
                requests[one.id] = replace(
                    one, returned=event["at"], answer=event["answer"], told=event.get("told", {})
                )
            case "body":
                at = event.pop("at")
                bodies[event["id"]] = Body(**event, started=at, held_until=at - 1, seen=at)
            case "sign" if event["id"] in bodies:
                bodies[event["id"]] = _signed(bodies[event["id"]], event)
            case "sent":
                sent[event["run"]] = Sent(**event)
            case "fate" if event["run"] in sent:
                sent[event["run"]] = replace(sent[event["run"]], fate=event["fate"], why=event["why"])
            case "tick":
                ticks.append(Tick(**event))
            case "about":
                del event["at"]
                about.update(event)
    return History(
        tuple(sorted(requests.values(), key=lambda one: one.called)),
        tuple(sorted(bodies.values(), key=lambda one: one.started)),
        tuple(sent.values()),
        tuple(ticks),
        about,
    )


def _event(line: str) -> dict[str, Any] | None:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None  # torn by a kill
    return event


def _renamed(event: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in event.items()}


def _signed(body: Body, event: dict[str, Any]) -> Body:
    at, held = event["at"], event["held"]
    refused = (*body.refused, at) if held and event.get("refused") else body.refused
    return replace(
        body,
        seen=max(body.seen, at),
        held_until=max(body.held_until, at) if held else body.held_until,
        how=event.get("how", body.how),
        refused=refused,
    )


def write(history: History) -> list[str]:
    """Return lines that `read` makes the same history of."""
    events: list[dict[str, Any]] = [{"event": "about", "at": 0, **history.about}]
    for one in history.requests:
        call = {"id": one.id, "who": one.who, "what": one.what, "key": one.key, "asked": one.asked}
        events.append({"event": "call", "at": one.called, **call})
        if one.returned != NEVER:
            back = {"id": one.id, "answer": one.answer, "told": one.told}
            events.append({"event": "return", "at": one.returned, **back})
    for body in history.bodies:
        names = ("id", "who", "key", "run", "attempt", "fence", "message")
        events.append({"event": "body", "at": body.started, **{name: getattr(body, name) for name in names}})
        if body.held_until >= body.started:
            events.append({"event": "sign", "at": body.held_until, "id": body.id, "held": True})
        events += [
            {"event": "sign", "at": at, "id": body.id, "held": True, "refused": True} for at in body.refused
        ]
        events.append({"event": "sign", "at": body.seen, "id": body.id, "held": False, "how": body.how})
    for one in history.sent:
        facts = {"run": one.run, "task": one.task, "key": one.key, "promise": one.promise}
        events.append({"event": "sent", "at": one.at, **facts})
        if one.fate:
            events.append({"event": "fate", "at": one.at, "run": one.run, "fate": one.fate, "why": one.why})
    for tick in history.ticks:
        facts = {"entry": tick.entry, "due": tick.due, "run": tick.run}
        events.append({"event": "tick", "at": tick.at, **facts})
    return [json.dumps(event) for event in events]
