"""The demo told line by line, as it happens; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.facts import Facts, Said

WORDS = {
    "skipped": ("skips", "yellow"),
    "deferred": ("defers", "cyan"),
    "took_over": ("takes over", "magenta"),
    "dropped": ("drops a late copy of", "yellow"),
    "lost": ("loses the lease of", "red"),
    "regained": ("regains the lease of", "green"),
    "restored": ("writes back the lease of", "green"),
    "store_error": ("gets no answer from the store for", "red"),
}
"""How each kind of event is told, and in which colour."""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One thing that happened."""

    at: float
    process: str
    text: str
    colour: str


class Story:
    """Tells what has happened since it was last asked."""

    def __init__(self) -> None:
        """Begin at the beginning."""
        self._told = (0, 0, 0, 0)

    def new(self, facts: Facts) -> list[Line]:
        """Return the new lines, by time."""
        sent, said, kills = facts.sent, facts.said, facts.kills
        bodies = list(facts.bodies.values())
        told, self._told = self._told, (len(sent), len(bodies), len(said), len(kills))
        keys = {message.run: message.key for message in sent}
        lines = [
            Line(tick.at, tick.process, "sends a tick", "blue") for tick in sent[told[0] :] if tick.by_beat
        ]
        lines += [
            Line(body.started, body.process, f"runs {body.key} in process {body.pid}", "green")
            for body in bodies[told[1] :]
        ]
        lines += [line for word in said[told[2] :] for line in _said(word, keys)]
        lines += [
            Line(kill.at, kill.process, f"process {kill.pid} is killed (SIGKILL)", "bold red")
            for kill in kills[told[3] :]
        ]
        return sorted(lines)


def _said(said: Said, keys: dict[str, str]) -> Iterator[Line]:
    # What beats say is about ticks, of which each replica but one loses every one.
    if said.process.startswith("worker"):
        words, colour = WORDS.get(said.kind, (said.kind.replace("_", " "), "white"))
        yield Line(said.at, said.process, f"{words} {keys.get(said.run, said.task)}", colour)
