"""Celery's private parts that are used stand in one list, each with its reason."""

from __future__ import annotations

import ast
from pathlib import Path

import singleflight.celery
from singleflight.celery.private import PRIVATE

FOLDER = Path(singleflight.celery.__file__).parent


def names() -> tuple[set[str], set[str]]:
    """Return the private names that the folder's modules use, and those that they define themselves."""
    used: set[str] = set()
    own: set[str] = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute):
                (own if isinstance(node.ctx, ast.Store) else used).add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own.add(node.target.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                used.add(node.value)  # getattr and the like
    ours = ("__", "_singleflight")
    return {name for name in used if name[:1] == "_" != name and not name.startswith(ours)}, own


def test_every_private_part_of_celery_that_is_used_is_listed_with_its_reason() -> None:
    """Who looks after a new Celery need not search."""
    used, own = names()

    assert used - own - set(PRIVATE) == set()


def test_nothing_is_listed_that_is_not_used() -> None:
    """A list that only grows is no help."""
    used, own = names()

    assert set(PRIVATE) - used - own == set()
