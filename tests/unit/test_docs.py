"""The documentation names real tests and real files."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from singleflight import Singleton, aio, lease, peek, try_lease
from singleflight.dramatiq import Singleflight
from singleflight.policy import BUILT_IN, EFFECTS, Effect

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


def test_the_table_of_effects_is_the_one_in_the_code() -> None:
    """What becomes of a duplicate: the page says the same as `policy.EFFECTS`, and leaves no pair out."""
    page = (ROOT / "docs/celery.md").read_text("utf-8").split("## What becomes of a duplicate")[1]
    rows = [line.split("|")[1:5] for line in page.split("Every other pair")[0].splitlines()[4:] if line]
    shown = {
        (at_most_one.strip(" `"), on_conflict): Effect(publish.replace("`", "").strip(), worker.strip())
        for at_most_one, conflicts, publish, worker in ([c.replace("`", "") for c in row] for row in rows)
        for on_conflict in conflicts.replace(" ", "").split(",")
    }

    assert shown == EFFECTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the project finds that file."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_pages_leases_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Each block of the page on plain code does what it says, on a store in memory."""
    page = (ROOT / "docs/library.md").read_text("utf-8").replace("redis://redis/0", "memory://library")
    asking, waiting, peeking, tasks, leading, awaiting = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    sent: list[int] = []
    names: dict[str, Any] = {}

    exec(asking, names)
    exec(waiting, names)
    exec(peeking, names)
    with lease("memory://library", "reports.nightly"), lease("memory://library", "import"):
        exec(asking, names)
        exec(peeking, names)
    compile(tasks, "tasks", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    exec(leading, names)
    names["lead"](lambda: sent.append(1), lambda: len(sent) == 2)
    exec(awaiting, {})

    assert len(sent) == 2
    said = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in said[:2]] == ["at work", "at work"]
    assert said[2] == "free; the last run ended as finished"
    assert said[3].startswith("somebody else is at it: running: run ")
    assert re.fullmatch(r"run \S+ has it for \S+ seconds: import on .*", said[4])


def test_every_option_of_a_task_is_documented() -> None:
    """Each stands in the table of options, with its built-in value; there is none that is not there."""
    section = (ROOT / "docs/celery.md").read_text("utf-8").split("## Options")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| *(.*?) *\| .+ \|$", section, re.MULTILINE)

    assert {name for name, _ in rows} == {field.name for field in fields(Singleton)}
    assert dict(rows)["ttl"] == str(BUILT_IN.ttl).removesuffix(".0")
    for name in ("on_conflict", "at_most_one", "on_store_error", "on_lost"):
        assert dict(rows)[name] == f'`"{getattr(BUILT_IN, name)}"`'


def test_every_argument_of_plain_leases_is_documented() -> None:
    """Of `try_lease`, `lease` and their kind for asyncio."""
    page = (ROOT / "docs/library.md").read_text("utf-8")
    functions = (try_lease, lease, peek, aio.try_lease, aio.lease, aio.peek)
    names = {name for function in functions for name in inspect.signature(function).parameters}

    assert [
        name for name in names - {"store", "name"} if f"`{name}" not in page and f"{name}=" not in page
    ] == []


def test_every_keyword_for_dramatiq_is_documented() -> None:
    """Those of `install` that are not Celery's own settings of the same name stand on Dramatiq's page."""
    page = (ROOT / "docs/dramatiq.md").read_text("utf-8")
    names = set(inspect.signature(Singleflight).parameters) - {"store"}

    assert [name for name in names if f"`{name}" not in page] == []


def test_unit_tests_are_named_after_what_they_test() -> None:
    """A module or package, a page, or a part of the tests' own equipment: so each is found by its name."""
    tops = ("singleflight", "demo", "tests", "docs")
    sources = (path for top in tops for path in (ROOT / top).rglob("*"))
    subjects = {path.stem for path in sources if path.suffix in (".py", ".md") or path.is_dir()}
    subjects = {name for name in subjects if not name.startswith(("test_", "__"))} | set(tops)
    stray = [
        path.name
        for path in (ROOT / "tests/unit").glob("test_*.py")
        if not any(f"{path.stem}_".startswith(f"test_{name}_") for name in subjects)
    ]

    assert stray == []


def test_every_name_in_code_and_pages_is_there() -> None:
    """What a docstring, an error or a page calls `singleflight.something` can be imported by that name."""
    dotted = re.compile(r"(?<![\w./~@\"-])singleflight(?:\.[A-Za-z_]\w*)+(?![\w/@])")
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*PAGES, *(ROOT / "singleflight").rglob("*.py"))
        for name in dotted.findall(path.read_text("utf-8"))
        if not (is_there(name) or name.endswith((".log", ".service", ".md", ".py", ".db")))
    ]

    assert missing == []


def is_there(name: str) -> bool:
    """Import as much of a dotted name as is a module, and look up the rest."""
    found: Any = importlib.import_module("singleflight")
    for part in name.split(".")[1:]:
        module = f"{found.__name__}.{part}" if hasattr(found, "__path__") else ""
        if module and importlib.util.find_spec(module):
            found = importlib.import_module(module)
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            return False
    return True
