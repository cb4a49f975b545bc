"""Which run a message belongs to: its id, and which publish of that id it is; pure.

A message's id alone does not tell a copy from a new call: callers reuse ids, and a frozen signature or a
pipeline that is started again publishes the same ones. So each publish whose id was given gets a mark, which
travels in the message: its redeliveries, retries and deferrals have the same one. A message from elsewhere
has none, and is known by its id.
"""

from __future__ import annotations

import os

LENGTH = 16
"""Characters of a mark."""


def run_of(message_id: str, mark: str | None) -> str:
    """Return the run that a message belongs to, as stores know it."""
    return message_id if mark is None else f"{message_id}~{mark}"


def message_id_of(run_id: str) -> str:
    """Return the id of a run's message, as callers, result backends and logs know it."""
    return run_id[: -LENGTH - 1] if is_marked(run_id) else run_id


def is_marked(run_id: str) -> bool:
    """Say whether the id of a run's message may have been published before: its result may be an old one."""
    return run_id[-LENGTH - 1 : -LENGTH] == "~" and len(run_id) > LENGTH + 1 and is_mark(run_id[-LENGTH:])


def is_mark(value: object) -> bool:
    """Say whether a value is a mark; a message may come from anyone."""
    return isinstance(value, str) and len(value) == LENGTH and not value.strip("0123456789abcdef")


def new_mark() -> str:
    """Return the mark of a publish from outside of any run."""
    return os.urandom(LENGTH // 2).hex()


class Publisher:
    """A run that publishes: a copy of it publishes the same again, and so gives the same marks.

    Otherwise a run that is redelivered after it has published its successor would start it twice.

    Args:
        run_id: the run.
        attempt: the number of its try: a retry publishes anew.
    """

    def __init__(self, run_id: str, attempt: int) -> None:
        self._run = f"{attempt} {run_id}"
        self._published: dict[str, int] = {}

    def next_mark(self, message_id: str) -> str:
        """Return the mark of this run's next publish under an id."""
        import hashlib  # noqa: PLC0415 - slow to load, and whoever only declares tasks needs none

        number = self._published[message_id] = self._published.get(message_id, 0) + 1
        source = f"{self._run}\0{message_id}\0{number}"
        return hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:LENGTH]
