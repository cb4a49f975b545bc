"""Random walks through worlds around a line, and what they are called after: what can go wrong in them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.stores.line_world import Broken, Config, World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONFIGS = {
    "plain": Config("ABCDE", faults={"crash": 2, "copy": 2, "retry": 2, "reply": 1, "publish": 1}),
    "retries": Config("ABC", faults={"retry": 3, "copy": 2, "crash": 1}),
    "window": Config("ABCD", window=5, faults={"crash": 1, "retry": 2, "copy": 1, "giveback": 1}),
    "giveback": Config("ABCD", faults={"giveback": 2, "copy": 1, "crash": 1}),
    "homes": Config("ABCD", "AAB", homes={"B": "B", "D": "B"}, faults={"crash": 2, "copy": 1}),
    "home gone": Config("ABCD", "AAB", homes={"B": "B"}, gone="B", faults={"gone": 1, "crash": 1}),
    "unpublishable": Config("ABC", unpublishable="B", faults={"crash": 1}),
    "listeners": Config("ABLM", "AA", listeners="LM", faults={"crash": 3}),
    "counting": Config("ABCD", "AA", counting="D", faults={"crash": 1, "copy": 1}),
    "drops": Config("ABCD", faults={"drop": 1, "crash": 1, "copy": 1, "retry": 1}),
    "joins": Config("ABCD", joins={"B": "A", "D": "A"}, faults={"crash": 1, "retry": 1, "copy": 1}),
    "joins, early": Config("ABC", joins={"B": "A"}, early="A", faults={"crash": 1}),
    "early": Config("ABCD", early="ABCD", faults={"crash": 2}),
    "lost by the broker": Config("ABC", faults={"lose": 1}),
    "evicted": Config("ABCD", faults={"evict": 2, "crash": 1}),
    "clock": Config("ABCD", faults={"step": 1, "crash": 1}),
    "clock, counting and joining": Config(
        "ABCD", counting="C", joins={"B": "A"}, faults={"step": 1, "crash": 1}
    ),
}

RARE = ("lost", "killed", "copy", "loses", "drop", "evict", "clock", "for good", "fails", "given back")


def walk(world: World, seed: int) -> list[str]:
    """Take up to 80 random steps and drain; return the steps.

    Raises:
        Broken: with the history, if one is broken.
    """
    chance = random.Random(seed)
    took: list[str] = []
    try:
        for _ in range(chance.randint(5, 80)):
            steps = list(world.steps())
            weights = [0.35 if any(word in label for word in RARE) else 2.0 for label, _ in steps]
            ((label, do),) = chance.choices(steps, weights)
            took.append(label)
            do()
        world.drain()
    except Broken as broken:
        raise Broken(f"{broken}\n  " + "\n  ".join(took)) from broken
    return took


def replay(world: World, labels: Sequence[str]) -> str:
    """Take these steps, as far as they can be taken, and drain; return what broke, or nothing."""
    try:
        for label in labels:
            do = dict(world.steps()).get(label)
            if do is not None:
                do()
        world.drain()
    except Broken as broken:
        return str(broken).partition(":")[0]
    return ""


def shortest(new_world: Callable[[], World], labels: list[str], what: str) -> list[str]:
    """Leave out every step that is not needed for a history to break in the same way."""
    number = 0
    while number < len(labels):
        fewer = labels[:number] + labels[number + 1 :]
        if replay(new_world(), fewer) == what:
            labels = fewer
        else:
            number += 1
    return labels
