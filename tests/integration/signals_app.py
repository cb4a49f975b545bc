"""Receivers of every signal of ours, for workers and the publishing test: each writes a line to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singleflight.celery import signals
from tests.integration.worker_app import FOLDER

if TYPE_CHECKING:
    from singleflight import Event

FILE = "signals.log"


def heard(folder: Path) -> list[dict[str, Any]]:
    """Return all that any process has heard so far."""
    file = folder / FILE
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def listen(folder: Path) -> None:
    """Write down every signal that is sent in this process."""
    for name in signals.__all__:

        def write(sender: Any, event: Event, name: str = name, **_: Any) -> None:
            facts = {"signal": name, "sender": getattr(sender, "name", sender), "run": event.run_id}
            with (folder / FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps({**facts, "reason": event.reason, "key": event.key}) + "\n")
            raise ValueError("a receiver's own trouble is nobody else's")

        getattr(signals, name).connect(write, weak=False, dispatch_uid=f"test.{name}")


if FOLDER in os.environ:
    listen(Path(os.environ[FOLDER]))
