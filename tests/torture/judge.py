"""What is wrong with a history, by what docs/guarantees.md promises; reads nothing else, pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from tests.torture.linearizable import Answer, search
from tests.torture.register import FINAL, register_for, with_echoes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.torture.history import Body, History, Request
    from tests.torture.linearizable import Found

One = TypeVar("One")

STORE_CLOCK = 0.02
"""Seconds by which times of a store's clock may be off: it counts milliseconds."""

RUNS_KEPT = 30
"""A finished run is recognised at least until so many others of its key have been granted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that must not be."""

    rule: str
    key: str
    text: str
    at: float
    """When it was there for all to see."""


def judge(history: History) -> list[Fault]:
    """Return all that is wrong, by time."""
    found = [fault for rule in RULES.values() for fault in rule(history)]
    return sorted(found, key=attrgetter("at"))


def overlaps(history: History) -> Iterator[Fault]:
    """No two bodies of one key ran at one moment at which both said that they hold the lease."""
    for key, bodies in _by_key(history.bodies):
        last: Body | None = None
        for body in bodies:
            if body.held_until < body.started:
                continue
            if last is not None and last.held_until > body.started:
                both = min(last.held_until, body.held_until) - body.started
                yield Fault(
                    "overlap",
                    key,
                    f"{_named(body)} started while {_named(last)} held; both for {both:.3f} s",
                    min(last.held_until, body.held_until),
                )
            last = body if last is None or body.held_until > last.held_until else last


def fences(history: History) -> Iterator[Fault]:
    """A grant that was asked for after another had been given has the higher fence; none is given twice."""
    for key, requests in _by_key(history.requests):
        grants = [one for one in requests if one.what == "claim" and one.answer == "granted"]
        highest: Request | None = None
        returned = sorted(grants, key=attrgetter("returned"))
        for one in grants:
            while returned and returned[0].returned < one.called:
                other = returned.pop(0)
                if highest is None or other.told["fence"] > highest.told["fence"]:
                    highest = other
            same = highest is not None and highest.asked["token"] == one.asked["token"]
            if highest is not None and not same and one.told["fence"] <= highest.told["fence"]:
                text = f"{one.asked['run_id']} got {one.told['fence']} after {highest.told['fence']}"
                yield Fault("fence", key, text, one.returned)
        seen: dict[int, str] = {}
        for one in grants:
            if seen.setdefault(one.told["fence"], one.asked["token"]) != one.asked["token"]:
                yield Fault("fence", key, f"{one.told['fence']} was given twice", one.returned)


def guarded(history: History) -> Iterator[Fault]:
    """What is guarded by the fence never refuses who holds the lease."""
    for body in history.bodies:
        for at in body.refused:
            if at <= body.held_until:
                yield Fault("guard", body.key, f"{_named(body)} was refused although it held", at)


def copies(history: History) -> Iterator[Fault]:
    """No copy of a run is granted after the end of that run was recorded."""
    for key, requests in _by_key(history.requests):
        grants = [one for one in requests if one.what == "claim" and one.answer == "granted"]
        for end in requests:
            if end.what != "release" or not end.known or end.asked["outcome"] not in FINAL:
                continue
            later = [one for one in grants if one.called > end.returned]
            again = [n for n, one in enumerate(later) if one.asked["run_id"] == end.asked["run_id"]]
            if again and again[0] < RUNS_KEPT:
                one = later[again[0]]
                yield Fault(
                    "copy", key, f"{one.asked['run_id']} had ended, and was granted again", one.returned
                )


def windows(history: History) -> Iterator[Fault]:
    """No new run starts within the window of the last start, unless that never began."""
    for key, requests in _by_key(history.requests):
        began = {body.fence for body in history.bodies if body.key == key}
        seen: set[str] = set()
        grants = []
        for one in requests:
            if one.what != "claim" or one.answer == "busy":
                continue
            # A run that may have begun before is no new one; a grant that never began is taken back.
            if one.asked["run_id"] not in seen and one.known and one.told["fence"] in began:
                grants.append(one)
            seen.add(one.asked["run_id"])
        for earlier, later in pairwise(grants):
            window = later.asked["window_ms"] / 1000
            longest = later.returned - earlier.called
            if longest < window - STORE_CLOCK:
                text = f"{later.asked['run_id']} started {longest:.3f} s after {earlier.asked['run_id']}"
                yield Fault("window", key, f"{text}, window {window:g} s", later.returned)


def losses(history: History) -> Iterator[Fault]:
    """Every message that was accepted has run to its end, or there is a reason why not."""
    returned = {body.message for body in history.bodies if body.how == "returned"}
    may_lose = history.about.get("broker_may_lose", 0)
    lost = [one for one in history.sent if one.run not in returned and not one.fate and one.promise == "once"]
    for one in lost if len(lost) > may_lose else []:
        text = f"{one.task} {one.run} was accepted, never ran to its end, and nothing says why"
        yield Fault("lost", one.key, f"{text}; the broker may have lost {may_lose}", one.at)


def doubles(history: History) -> Iterator[Fault]:
    """No body has a grant that was asked for after the end of its run was recorded."""
    ends: dict[tuple[str, str], float] = {}
    asked: dict[tuple[str, int], float] = {}
    for one in history.requests:
        if one.what == "release" and one.known and one.asked["outcome"] in FINAL:
            ends.setdefault((one.key, one.asked["run_id"]), one.returned)
        if one.what == "claim" and one.answer == "granted":
            asked.setdefault((one.key, one.told["fence"]), one.called)
    for body in history.bodies:
        end = ends.get((body.key, body.run))
        began = asked.get((body.key, body.fence), body.started)
        if end is not None and began > end and body.held_until >= body.started:
            yield Fault("double", body.key, f"{_named(body)} started after the end of its run", body.started)


def ticks(history: History) -> Iterator[Fault]:
    """Each due time of an entry was sent once: under one id, and nothing is missing between two."""
    every = history.about.get("every", {})
    for entry, own in _grouped(history.ticks, attrgetter("entry")):
        sent = sorted(own, key=attrgetter("due"))
        for earlier, later in pairwise(sent):
            gap = later.due - earlier.due
            if later.run != earlier.run and entry in every and gap < every[entry] * 0.9:
                yield Fault("tick", entry, f"sent again {gap:.3f} s later under another id", later.at)
            if entry in every and gap > every[entry] * 1.5 + history.about.get("tick_lateness", 0.0):
                yield Fault("tick", entry, f"nothing was sent for {gap:.3f} s", later.at)


def orders(history: History) -> Iterator[Fault]:
    """The requests of each key can have happened one after another."""
    for key, requests in _by_key(history.requests):
        found = _search(history, requests)
        if found.answer is Answer.NO:
            done = {one.id for one in found.longest}
            stuck = min(
                (one for one in requests if one.known and one.id not in done), key=attrgetter("returned")
            )
            yield Fault("order", key, f"{_asked(stuck)}; no order explains it", stuck.returned)


RULES: dict[str, Callable[[History], Iterator[Fault]]] = {
    "overlap": overlaps,
    "fence": fences,
    "guard": guarded,
    "copy": copies,
    "window": windows,
    "lost": losses,
    "double": doubles,
    "tick": ticks,
    "order": orders,
}


def undecided(history: History) -> list[str]:
    """Return the keys whose order the search gave up on: nothing is said of them."""
    keys = _by_key(history.requests)
    return [key for key, own in keys if _search(history, own).answer is Answer.UNDECIDED]


def _search(history: History, requests: list[Request]) -> Found:
    register = register_for(requests, history.about)
    plain = search(requests, register)
    # Nearly always this is enough, and every request that may or may not be doubles the work.
    return plain if plain.answer is Answer.YES else search(with_echoes(requests), register)


def _by_key(things: Iterable[One]) -> Iterator[tuple[str, list[One]]]:
    return _grouped(things, attrgetter("key"))


def _grouped(things: Iterable[One], key: Callable[[One], str]) -> Iterator[tuple[str, list[One]]]:
    for name, group in groupby(sorted(things, key=key), key):
        yield name, list(group)


def _named(body: Body) -> str:
    return f"{body.run} on {body.who} (fence {body.fence})"


def _asked(one: Request) -> str:
    told = " ".join(f"{name}={value}" for name, value in one.told.items())
    return f"{one.what} of {one.asked['run_id']} by {one.who} was told {one.answer} {told}".strip()
