"""Random messages: mutated, forged and garbled, as many as one likes, the same for the same seed."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

TEXTS = ("", "x", "\x1b[2J\nWARNING forged", "\x00", "\ud800", "]/[x]", "é" * 300, "y" * 5000)
NUMBERS = (
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    -(2**63),
    10**30,
    10**400,
    0.5,
    -1e308,
    1e308,
    float("inf"),
    float("nan"),
)
OPTIONS = (
    "by",
    "window",
    "on_conflict",
    "at_most_one",
    "ttl",
    "name",
    "skip_result",
    "give_up_after",
    "max_hold",
)
CHOICES: dict[str, tuple[Any, ...]] = {
    "by": ("key", ["key", "n"], "*", [], "nobody"),
    "window": (0.05, 1.0, 3e8, 10**400),
    "on_conflict": ("skip", "defer", "coalesce", "raise", "join"),
    "at_most_one": ("running", "waiting_or_running", "waiting_and_running"),
    "ttl": (1, 5, 3e8),
    "give_up_after": (0.5, 2, None),
    "max_hold": (10, None, 3e8),
}
MARKS = (
    "_singleflight_entered", "_singleflight_again", "_singleflight_keeps_slot", "_singleflight_lease",
    "singleflight_state", "singleflight_arrival", "is_eager", "called_directly", "_protected",
)  # fmt: skip


class Garbler:
    """Makes values and parts of messages at random.

    Args:
        seed: the same one makes the same messages, but for their ids.
        theirs: keys, names and runs of others, which forged messages name.
    """

    def __init__(self, seed: int, theirs: list[str]) -> None:
        self.random = random.Random(seed)
        self._texts = (*TEXTS, *theirs)
        self._theirs = theirs

    def chance(self, share: float) -> bool:
        """Say yes in this share of cases."""
        return self.random.random() < share

    def junk(self, depth: int = 2) -> Any:
        """Return any value that JSON carries."""
        kind = self.random.randrange(8 if depth else 5)
        if kind < 2:
            return self.random.choice(NUMBERS)
        if kind < 4:
            return self.random.choice(self._texts)
        if kind == 4:
            return self.random.choice((None, True, False))
        if kind < 7:
            return [self.junk(depth - 1) for _ in range(self.random.randrange(3))]
        return {str(self.random.choice(self._texts)): self.junk(depth - 1) for _ in range(2)}

    def run_id(self) -> str:
        """Return an id: mostly a new one, and sometimes an odd one, or somebody else's.

        Celery's main process ends by itself when it is to store the end of a run whose id is no UTF-8.
        """
        text = str(self.junk(0)).replace("\ud800", "") if self.chance(0.1) else ""
        return text or str(uuid.UUID(int=self.random.getrandbits(128)))

    def header(self, run_id: str, task: str) -> Any:
        """Return what stands in the place of our header: for this message, for another, or garbled."""
        if self.chance(0.15):
            return self.junk()
        whose = [run_id, task] if self.chance(0.8) else self.junk(1)
        header: dict[str, Any] = {"for": whose}
        fields = {
            "options": self.options,
            "deferrals": lambda: self.random.choice((1, 5, 10**9, self.junk())),
            "since": lambda: self.random.choice((1.0, 1.7e9, self.junk())),
            "must_run": lambda: self.random.choice((True, self.junk())),
            "slot": lambda: self.random.choice((*self._theirs, self.junk())),
            "joins": lambda: self.random.choice((*self._theirs, self.junk())),
            "unknown": self.junk,
        }
        for name, make in fields.items():
            if self.chance(0.35):
                header[name] = make()
        return header

    def options(self) -> Any:
        """Return what stands in the place of a call's options."""
        if self.chance(0.1):
            return self.random.choice((False, self.junk()))
        names = self.random.sample(OPTIONS, self.random.randrange(4))
        return {
            name: self.random.choice((*CHOICES.get(name, self._texts), self.junk(1)))
            if self.chance(0.8)
            else self.junk()
            for name in names
        }

    def marks(self) -> dict[str, Any]:
        """Return marks as a worker sets them, ours and Celery's, of which a message may have none."""
        found = {name: self.random.choice((True, 3e11, self.junk())) for name in MARKS if self.chance(0.4)}
        if self.chance(0.5):
            found["properties"] = self.random.choice((None, {}, {"singleflight_arrival": self.junk()}))
        return found

    def arguments(self, keys: int) -> tuple[Any, Any]:
        """Return arguments: mostly a key and a number, sometimes whatever."""
        if self.chance(0.1):
            return self.junk(), self.junk()
        args: list[Any] = [f"k{self.random.randrange(keys)}", self.random.randrange(3)]
        return args[: self.random.choice((1, 2, 2, 2))], {"n": 1} if self.chance(0.1) else {}

    def moment(self) -> str:
        """Return an instant around now, as Celery writes it."""
        return (datetime.now(UTC) + timedelta(seconds=self.random.uniform(-60, 2))).isoformat()


def unleased(header: Any, run_id: str, task: str) -> bool:
    """Whether a header asks, rightly addressed, for no lease: that is what ``singleton=False`` writes."""
    mine = isinstance(header, dict) and header.get("for") == [run_id, task]
    return mine and header.get("options") is False
