"""What operators see of one key: a record in plain words, and as JSON; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from singleflight.events import short_key
from singleflight.identity import message_id_of
from singleflight.lease import Holder
from singleflight.printable import printable
from singleflight.stores.base import INFINITE

if TYPE_CHECKING:
    from singleflight.stores.base import Look

STATES = ("running", "lapsed", "waiting", "window", "free")
"""Held; held by somebody not heard of any more; free, and one waits; free but too soon to start; free."""

SHOWN_RUNS = 10

MOST_SHOWN = 1000
"""Characters of one line; runs and tasks may be named at any length, and by anybody."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key at one moment."""

    key: str
    look: Look
    counted: bool = True
    """Whether the store counts refusals."""

    @property
    def state(self) -> str:
        """One of `STATES`."""
        record, now_ms = self.look.record, self.look.now_ms
        if record.held:
            return "running" if record.expires_ms > now_ms else "lapsed"
        if record.opens_ms >= now_ms:
            return "window"
        return "waiting" if self.waiting else "free"

    @property
    def waiting(self) -> str:
        """The run in the waiting slot; empty if there is none."""
        return self.look.record.slot if self.look.record.slot_expires_ms > self.look.now_ms else ""

    def blockers(self) -> list[str]:
        """Return what keeps fresh runs from the key, and ends with an eviction."""
        record = self.look.record
        window = self._left(record.opens_ms)
        return [
            *([f"run {record.run_id} had it"] if record.held else []),
            *([f"its window was closed for {brief(window)} more"] if window else []),
            *([f"run {self.waiting} waited"] if self.waiting else []),
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
        holder = Holder.decode(self.look.record.holder)
        return holder.task if holder else short_key(self.key).rpartition(":")[0]

    def knows(self, run_id: str) -> bool:
        """Whether a run, or one of a message with this id, holds the key, waits for it, or is remembered."""
        record = self.look.record
        runs = (record.run_id, self.waiting, *(run.run_id for run in record.runs))
        return any(run_id in (run, message_id_of(run)) for run in runs)

    def facts(self) -> dict[str, object]:
        """Return all there is, for JSON; durations in seconds, None where something does not apply."""
        record = self.look.record
        holder = Holder.decode(record.holder)
        return {
            "key": self.key,
            "short_key": self.name,
            "task": self.task,
            "state": self.state,
            "run_id": record.run_id or None,
            "fence": record.fence,
            "host": holder.host if holder else None,
            "pid": holder.pid if holder else None,
            "started_ago": self._ago(record.started_ms),
            "time_left": self._left(record.expires_ms) if record.held else None,
            "window_left": self._left(record.opens_ms),
            "waiting": self.waiting or None,
            "waiting_left": self._left(record.slot_expires_ms) if self.waiting else None,
            "outcome": record.outcome or None,
            "refused": record.refused if self.counted else None,
            "refused_reason": record.refused_reason or None,
            "refused_ago": self._ago(record.refused_ms),
            "forgotten_in": self.look.remaining_ms / 1000,
            "runs": [
                {
                    "run_id": run.run_id,
                    "attempt": None if run.attempt >= INFINITE else run.attempt,
                    "ended": run.ended,
                }
                for run in reversed(record.runs)
            ],
        }

    def lines(self) -> list[str]:
        """Return the lines of `ls`: the key, what goes on, and who was turned away."""
        story = ["; ".join(self._story()), self._refusals()]
        lines = [f"{self.state:<8} {self.name}", *(f"{'':<8} {line}" for line in story if line)]
        return [printable(line, MOST_SHOWN) for line in lines]

    def paragraph(self) -> list[str]:
        """Return what `show` says."""
        record = self.look.record
        rows = [
            ("key", self.key),
            ("task", self.task),
            ("state", self.state),
            ("run", record.run_id or "none yet"),
            ("holder" if record.held else "last holder", str(Holder.decode(record.holder) or "unknown")),
            ("fence", str(record.fence)),
            ("started", _since(self._ago(record.started_ms))),
            ("time left", brief(self._left(record.expires_ms)) if record.held else "not held"),
            (
                "window",
                f"{brief(self._left(record.opens_ms))} left" if self._left(record.opens_ms) else "open",
            ),
            ("waiting", self._waiting()),
            ("outcome", record.outcome or ("still running" if record.held else "none")),
            (
                "refused",
                self._refusals("") or ("none" if self.counted else "not counted by this kind of store"),
            ),
            ("forgotten", f"in {brief(self.look.remaining_ms / 1000)}, if not used"),
        ]
        lines = [f"{name:<12} {text}" for name, text in rows]
        for number, run in enumerate(list(reversed(record.runs))[:SHOWN_RUNS]):
            ended = "ended" if run.attempt >= INFINITE else f"attempt {run.attempt}"
            if not run.ended:
                ended += ", not ended"
            lines.append(f"{'last runs' if number == 0 else '':<12} {run.run_id}  {ended}")
        return [printable(line, MOST_SHOWN) for line in lines]

    def _story(self) -> list[str]:
        record = self.look.record
        parts = []
        holder = Holder.decode(record.holder)
        where = f"{holder.host} pid {holder.pid}" if holder else "somebody"
        started = self._ago(record.started_ms)
        if record.held:
            silent = self.state == "lapsed"
            left = "not heard of since" if silent else f"{brief(self._left(record.expires_ms))} left"
            parts.append(f"{where} for {brief(started)}, {left}")
        else:
            parts.append(f"{record.outcome or 'free'}, started {_since(started)}")
        if window := self._left(record.opens_ms):
            parts.append(f"next start in {brief(window)}")
        if self.waiting:
            left = "" if record.held else f", for {brief(self._left(record.slot_expires_ms))} at most"
            parts.append(f"one waits{left}")
        return parts

    def _waiting(self) -> str:
        left = brief(self._left(self.look.record.slot_expires_ms))
        return f"{self.waiting}, for {left} at most" if self.waiting else "nobody"

    def _refusals(self, word: str = " refused") -> str:
        record = self.look.record
        if not record.refused:
            return ""
        return (
            f"{record.refused}{word}, last {_since(self._ago(record.refused_ms))} ({record.refused_reason})"
        )

    def _ago(self, moment_ms: int) -> float | None:
        return (self.look.now_ms - moment_ms) / 1000 if moment_ms else None

    def _left(self, moment_ms: int) -> float | None:
        return (moment_ms - self.look.now_ms) / 1000 if moment_ms > self.look.now_ms else None


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
