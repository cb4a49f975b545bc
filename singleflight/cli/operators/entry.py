"""What operators see of one key: a record in plain words, and as JSON; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from singleflight.events import short_key
from singleflight.identity import message_id_of
from singleflight.printable import printable

if TYPE_CHECKING:
    from singleflight.stores.view import View

STATES = ("running", "lapsed", "waiting", "window", "free")
"""Held; held by somebody not heard of any more; free, and one waits; free but too soon to start; free."""

SHOWN_RUNS = 10

MOST_SHOWN = 1000
"""Characters of one line; runs and tasks may be named at any length, and by anybody."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key at one moment."""

    key: str
    view: View
    counted: bool = True
    """Whether the store counts refusals."""

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.view.held:
            return "running" if self.view.running else "lapsed"
        if self.view.in_window:
            return "window"
        return "waiting" if self.view.waiting else "free"

    def blockers(self) -> list[str]:
        """Return what keeps fresh runs from the key, and ends with an eviction."""
        view, window = self.view, self.view.window_left
        return [
            *([f"run {view.run_id} had it"] if view.held else []),
            *([f"its window was closed for {brief(window)} more"] if window else []),
            *([f"run {view.waiting} waited"] if view.waiting else []),
        ]

    @property
    def quiet(self) -> bool:
        """Whether nothing is going on."""
        return self.state == "free"

    @property
    def name(self) -> str:
        """The key as logs show it; in front of an entry of beat's schedule, ``beat:``."""
        return named(self.key)

    @property
    def task(self) -> str:
        """Whose key it is, as far as the store knows: the whole name if a run has held it, else its end."""
        holder = self.view.holder
        return holder.task if holder else short_key(self.key).rpartition(":")[0]

    def knows(self, run_id: str) -> bool:
        """Whether a run, or one of a message with this id, has had the key, or has asked to wait for it."""
        return any(run_id in (run, message_id_of(run)) for run in self.view.known_runs)

    def facts(self) -> dict[str, object]:
        """Return all there is, for JSON; durations in seconds, None where something does not apply."""
        view = self.view
        holder = view.holder
        return {
            "key": self.key,
            "short_key": self.name,
            "task": self.task,
            "state": self.state,
            "run_id": view.run_id or None,
            "fence": view.fence,
            "host": holder.host if holder else None,
            "pid": holder.pid if holder else None,
            "started_ago": view.started_ago,
            "time_left": view.time_left,
            "window_left": view.window_left,
            "waiting": view.waiting or None,
            "waiting_left": view.waiting_left,
            "outcome": view.outcome or None,
            "refused": view.refused if self.counted else None,
            "refused_reason": view.refused_reason or None,
            "refused_ago": view.refused_ago,
            "forgotten_in": view.forgotten_in,
            "runs": [{"run_id": run.run_id, "attempt": run.attempt, "ended": run.ended} for run in view.runs],
        }

    def lines(self) -> list[str]:
        """Return the lines of `ls`: the key, what goes on, and who was turned away."""
        story = ["; ".join(self._story()), self._refusals()]
        lines = [f"{self.state:<8} {self.name}", *(f"{'':<8} {line}" for line in story if line)]
        return [printable(line, MOST_SHOWN) for line in lines]

    def paragraph(self) -> list[str]:
        """Return what `show` says."""
        view = self.view
        rows = [
            ("key", self.key),
            ("task", self.task),
            ("state", self.state),
            ("run", view.run_id or "none yet"),
            ("holder" if view.held else "last holder", str(view.holder or "unknown")),
            ("fence", str(view.fence)),
            ("started", _since(view.started_ago)),
            ("time left", brief(view.time_left) if view.held else "not held"),
            (
                "window",
                f"{brief(view.window_left)} left" if view.window_left else "open",
            ),
            ("waiting", self._waiting()),
            ("outcome", view.outcome or ("still running" if view.held else "none")),
            (
                "refused",
                self._refusals("") or ("none" if self.counted else "not counted by this kind of store"),
            ),
            ("forgotten", f"in {brief(view.forgotten_in)}, if not used"),
        ]
        lines = [f"{name:<12} {text}" for name, text in rows]
        for number, run in enumerate(view.runs[:SHOWN_RUNS]):
            ended = "ended" if run.attempt is None else f"attempt {run.attempt}"
            if not run.ended:
                ended += ", not ended"
            lines.append(f"{'last runs' if number == 0 else '':<12} {run.run_id}  {ended}")
        return [printable(line, MOST_SHOWN) for line in lines]

    def _story(self) -> list[str]:
        view = self.view
        parts = []
        holder = view.holder
        where = f"{holder.host} pid {holder.pid}" if holder else "somebody"
        started = view.started_ago
        if view.held:
            silent = self.state == "lapsed"
            left = "not heard of since" if silent else f"{brief(view.time_left)} left"
            parts.append(f"{where} for {brief(started)}, {left}")
        else:
            parts.append(f"{view.outcome or 'free'}, started {_since(started)}")
        if window := view.window_left:
            parts.append(f"next start in {brief(window)}")
        if view.waiting:
            left = "" if view.held else f", for {brief(view.waiting_left)} at most"
            parts.append(f"one waits{left}")
        return parts

    def _waiting(self) -> str:
        waiting, left = self.view.waiting, brief(self.view.waiting_left)
        return f"{waiting}, for {left} at most" if waiting else "nobody"

    def _refusals(self, word: str = " refused") -> str:
        view = self.view
        if not view.refused:
            return ""
        return f"{view.refused}{word}, last {_since(view.refused_ago)} ({view.refused_reason})"


def in_order(entries: list[Entry]) -> list[Entry]:
    """Sort by what is most urgent, then by name."""
    return sorted(entries, key=lambda entry: (STATES.index(entry.state), entry.key))


def named(key: str) -> str:
    """Return the short text that stands for a key wherever operators read and type one."""
    prefix = key.rsplit(":", 2)[0]
    return f"beat:{short_key(key)}" if prefix.endswith(":beat") else short_key(key)


def brief(seconds: float | None) -> str:
    """Return a duration as people say it: 3 s, 4 min, 5 h, 6 d."""
    if seconds is None:
        return "?"
    for size, unit, most in ((1, "s", 120), (60, "min", 7200), (3600, "h", 172800)):
        if seconds < most:
            return f"{max(0, round(seconds / size))} {unit}"
    return f"{round(seconds / 86400)} d"


def _since(seconds: float | None) -> str:
    return "never" if seconds is None else f"{brief(seconds)} ago"
