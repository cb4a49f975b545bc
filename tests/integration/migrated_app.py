"""The tasks of `docs/migrating.md`, taken from the page itself, for workers, beats and the publisher."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import current_task

from tests.integration.worker_app import FOLDER, app
from tests.support.bodylog import BodyLog

if TYPE_CHECKING:
    from celery import Celery

PAGE = Path(__file__).resolve().parents[2] / "docs/migrating.md"


@dataclass
class Block:
    """One block of the page: what it was before, and what it is after."""

    before: str
    after: str
    used: dict[str, Any] = field(default_factory=dict)
    """What the block has defined, once it has been run."""

    @property
    def is_python(self) -> bool:
        """False for what is typed into a shell."""
        return not self.after.startswith("celery ")


def blocks() -> list[Block]:
    """Return the page's blocks in their order."""
    found = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [Block(side(text, "-"), side(text, "+")) for text in found]


def side(text: str, sign: str) -> str:
    """Return one side of a diff."""
    return "".join(f"{line[1:]}\n" for line in text.splitlines() if not line or line[0] in (sign, " "))


def load(key: str) -> None:
    """Do the work of every task of the page, for as long as the test says."""
    folder = Path(os.environ[FOLDER])
    with BodyLog.from_environment().body(key, current_task.request.id) as working:
        working.work_until(folder / f"gate-{key}")


def declare(app: Celery) -> list[Block]:
    """Run what the page says on an app, and return its blocks."""
    declared = blocks()
    for number, block in enumerate(declared):
        if block.is_python:
            block.used = {"app": app, "load": load, "__name__": "migrated"}
            exec(compile(block.after, f"{PAGE.name}#{number}", "exec"), block.used)
    return declared


if FOLDER in os.environ:
    declare(app)
