"""What is left of a run in which something was wrong: its history, the shortest part found, a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.torture.history import write
from tests.torture.judge import judge
from tests.torture.picture import draw
from tests.torture.shrink import shrink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.torture.history import History
    from tests.torture.judge import Fault

MOST = 5
"""How many faults are looked at closely."""


def keep(history: History, faults: Sequence[Fault], folder: Path) -> list[str]:
    """Write what others can judge again; return a line for each file."""
    folder = folder / "found"
    folder.mkdir(exist_ok=True)
    whole = folder / "history.jsonl"
    whole.write_text("\n".join(write(history)) + "\n")
    lines = [f"the whole history, to judge again: ./dev torture --replay {whole}"]
    first = {(fault.rule, fault.key): fault for fault in reversed(faults)}
    for number, fault in enumerate(list(first.values())[:MOST], 1):
        part = shrink(history, fault, judge)
        short, picture = folder / f"fault{number}.jsonl", folder / f"fault{number}.svg"
        short.write_text("\n".join(write(part)) + "\n")
        picture.write_text(draw(part, fault))
        size = len(part.requests) + len(part.bodies)
        lines.append(f"{fault.rule}: {size} requests and bodies are enough: {short}, {picture.name}")
    return lines
