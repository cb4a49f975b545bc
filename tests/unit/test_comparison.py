"""The comparison with other libraries names, for each of its rows, the test that proves it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration import test_peers_rows as peers

PAGE = Path(__file__).parents[2] / "docs/comparison.md"
HERE = "tests/integration/test_peers_rows.py"


def rows() -> dict[str, str]:
    """Return row -> test of the page's first table."""
    table = PAGE.read_text("utf-8").split("## Beats")[0]
    return dict(re.findall(r"^\| (.+?) \|.*\| `([\w/]+\.py::\w+)` \|$", table, flags=re.MULTILINE))


def proved_here() -> dict[str, str]:
    """Return row -> test for those that carry their row in their docstring."""
    tests = {name: test for name, test in vars(peers).items() if name.startswith("test_")}
    found = {
        name: re.findall(r"^Row: (.+)\.$", test.__doc__ or "", re.MULTILINE) for name, test in tests.items()
    }
    assert all(len(said) == 1 for said in found.values()), found
    return {said[0]: f"{HERE}::{name}" for name, said in found.items()}


def test_every_row_of_the_comparison_is_proved_by_the_test_it_names() -> None:
    """Page and test module have the same rows, and name the same test for each."""
    proved = {**peers.PROVED, **proved_here()}

    assert len(proved) == len(peers.PROVED) + len(proved_here())
    assert rows() == proved
