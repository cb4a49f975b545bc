"""The documentation names real tests and real files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def named_tests(page: Path) -> list[tuple[str, str]]:
    """Return (path, test) for every `path/of/file.py::test` of a page."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text("utf-8"))


def test_every_guarantee_names_a_test() -> None:
    """Each sentence under a promise ends with at least one test; what is never promised names none."""
    promised, never = (ROOT / "docs/guarantees.md").read_text("utf-8").split("## Never promised")
    sentences = [line for line in promised.splitlines() if line.startswith("- ")]

    assert sentences
    assert never
    assert [line for line in sentences if "::test_" not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page: Path) -> None:
    """A page that says where something is proved says so truly."""
    missing = [
        f"{path}::{test}"
        for path, test in named_tests(page)
        if not re.search(rf"def {test}\(", (ROOT / path).read_text("utf-8"))
    ]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the project finds that file."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []
