"""Runs of broken kinds: is each found, by which rule, and how soon?"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.torture.mutants import MUTANTS, VARIABLE
from tests.torture.run import Setting, torture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.torture.run import Result


def mutants(names: Sequence[str], *, seconds: float, seed: int) -> int:
    """Print a table of all mutants, or of those named; the number of those that were not found."""
    missed = 0
    print("| mutant | what it does | store | found by | after |\n|---|---|---|---|---|")
    for name in names or MUTANTS:
        mutant = MUTANTS[name]
        result = survive(name, seconds=seconds, seed=seed)
        rules = ", ".join(sorted({fault.rule for fault in result.faults}))
        missed += not rules
        after = f"{result.took:.0f} s" if rules else f"**not in {seconds:.0f} s**"
        print(f"| {name} | {mutant.what} | {mutant.store} | {rules or '-'} | {after} |", flush=True)
    return missed


def survive(name: str, *, seconds: float, seed: int) -> Result:
    """Run one mutant until it is found, or the time is over."""
    mutant = MUTANTS[name]
    setting = Setting(
        store=mutant.store,
        seconds=seconds,
        seed=seed,
        faults=mutant.faults,
        environment={VARIABLE: name},
        until_wrong=True,
    )
    with tempfile.TemporaryDirectory(prefix="torture-mutant-") as folder:
        return torture(setting, Path(folder))
