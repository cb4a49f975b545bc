"""A short torture with fixed seeds: nothing is wrong, and what is broken on purpose is found."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.commands import import_path
from tests.torture.judge import undecided
from tests.torture.report import keep
from tests.torture.run import Setting, torture
from tests.torture.table import survive

if TYPE_CHECKING:
    from pathlib import Path

SHORT = {
    "valkey": Setting(store="valkey", seconds=25, seed=1),
    "sqlite": Setting(store="sqlite", seconds=15, seed=2),
    "both frameworks and beats": Setting(
        store="valkey", seconds=25, seed=3, clients=2, frameworks=("celery", "dramatiq"), beats=True
    ),
}

MAKE_EACH = """
import os
from tests.torture.mutants import MUTANTS
for name, mutant in MUTANTS.items():
    child = os.fork()
    if not child:
        mutant.apply()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(name)
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SHORT)
def test_nothing_is_wrong(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many clients, one store, a nemesis; the judge reads what was seen."""
    result = torture(SHORT[name], tmp_path)
    counts = result.counts()
    with capsys.disabled():
        sys.stdout.write(f"\n{name}: {counts}\n")
    left = keep(result.history, result.faults, tmp_path) if result.faults else []

    assert not result.faults, left
    assert not undecided(result.history)
    assert counts["grants"] > 20
    assert counts["deeds"] > 5


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["a-release-by-anybody", "it-is-held-for-good"])
def test_a_mutant_is_found(name: str) -> None:
    """One in the store's rules and one in the holder's; `./dev torture --mutants` tries them all."""
    result = survive(name, seconds=90, seed=1)

    assert result.faults


def test_every_mutant_can_be_made(tmp_path: Path) -> None:
    """What they change is still there; each in a process of its own."""
    made = subprocess.run(
        [sys.executable, "-c", MAKE_EACH],
        env={**os.environ, **import_path(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert (made.stdout, made.returncode) == ("", 0), made.stderr
