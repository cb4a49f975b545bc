"""One process that publishes: `python -m tests.torture.publisher FRAMEWORK SEED KEYS`."""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singleflight import SingleflightError
from singleflight.dramatiq.actor import Duplicate
from tests.torture.messages_app import journal, kinds, make_celery, make_dramatiq

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = 0.25
"""Seconds between two messages, on average."""


def main() -> None:
    """Send until the file `quiet` is there."""
    framework, seed, keys = sys.argv[1], sys.argv[2], int(sys.argv[3])
    send = by_celery() if framework == "celery" else by_dramatiq()
    chance = random.Random(f"{seed} {journal.name}")
    while not (Path(journal.folder) / "quiet").exists():
        name, key = chance.choice(sorted(kinds())), f"{framework}{chance.randrange(keys)}"
        seconds, at = chance.choice([0.0, 0.05, 0.2, 0.2, 1.5]), time.monotonic()
        with suppress(SingleflightError):
            run = send(name, key, seconds)
            if run:
                # At the moment before: what became of it may have been written meanwhile.
                journal.write("sent", at=at, run=run, task=name, key=key, promise="once")
        time.sleep(chance.uniform(0, 2 * EVERY))


def by_celery() -> Callable[[str, str, float], str]:
    """Return what sends a Celery task, and gives its id unless it is a duplicate."""
    app = make_celery()

    def send(name: str, key: str, seconds: float) -> str:
        result: Any = app.tasks[name].apply_async((key, seconds))
        return "" if result.duplicate else str(result.id)

    return send


def by_dramatiq() -> Callable[[str, str, float], str]:
    """Return what sends a Dramatiq message, and gives its id unless it is a duplicate."""
    actors = make_dramatiq()

    def send(name: str, key: str, seconds: float) -> str:
        message = actors[name].send(key, seconds)
        return "" if message is None or isinstance(message, Duplicate) else str(message.message_id)

    return send


if __name__ == "__main__":
    main()
