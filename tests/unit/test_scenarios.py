"""The page of troubles from the field and the tests that carry their numbers belong together."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS / "scenarios/README.md"


def test_every_trouble_on_the_page_has_a_test_and_every_numbered_test_is_on_the_page() -> None:
    """Whoever reads a test's number finds what it is about, and no trouble stands there untried."""
    told = {int(number) for number in re.findall(r"^### (\d+)\.", PAGE.read_text("utf-8"), re.MULTILINE)}
    tried = {
        int(number)
        for file in TESTS.rglob("test_*.py")
        for numbers in re.findall(r"def test_scenario_((?:\d+_(?:and_)?)+)", file.read_text("utf-8"))
        for number in re.findall(r"\d+", numbers)
    }

    assert told
    assert tried == told
