"""Tables of many runs: stores by faults, and broken kinds by how soon each is found."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.torture.judge import undecided
from tests.torture.mutants import MUTANTS, VARIABLE
from tests.torture.nemesis import FAULTS, NETWORK, PROCESSES, SERVER
from tests.torture.report import keep
from tests.torture.run import Setting, torture
from tests.torture.stores import STARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.torture.run import Result

GROUPS = {
    "killed and stopped clients": PROCESSES,
    "connections cut, held, deaf, slow, refused": NETWORK,
    "the server killed and paused": SERVER,
    "clients' clocks stepped by hours": ("step", "stop"),
    "all at once": FAULTS,
}


def campaign(
    stores: Sequence[str], *, seconds: float, seeds: Sequence[int], frameworks: Sequence[str], broker: str
) -> int:
    """Print a table of stores by faults; the number of faults found."""
    wrong = 0
    print("| store | faults | runs | seeds | deeds | requests | unanswered | grants | bodies |", end="")
    print(" overlaps | lost | doubled | other | undecided |\n" + "|---" * 14 + "|")
    for store in stores or STARTS:
        for group, faults in GROUPS.items():
            total: Counter[str] = Counter()
            for seed in seeds:
                setting = Setting(
                    store, seconds, seed, faults=faults, frameworks=tuple(frameworks), broker=broker
                )
                total.update(_counted(setting))
            wrong += total["wrong"]
            other = total["wrong"] - total["overlap"] - total["lost"] - total["double"] - total["copy"]
            numbers = [total[name] for name in ("deeds", "requests", "unanswered", "grants", "bodies")]
            numbers += [total["overlap"], total["lost"], total["double"] + total["copy"], other]
            cells = [store, group, len(seeds), f"{seeds[0]} to {seeds[-1]}", *numbers, total["undecided"]]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return wrong


def _counted(setting: Setting) -> Counter[str]:
    """Run once and count; what was wrong is kept."""
    folder = Path(tempfile.mkdtemp(prefix=f"torture-{setting.store}-{setting.seed}-"))
    result = torture(setting, folder)
    if result.faults:
        print(*result.faults, *keep(result.history, result.faults, folder), sep="\n", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    rules = Counter(fault.rule for fault in result.faults)
    given_up = len(undecided(result.history))
    return Counter(result.counts()) + rules + Counter(wrong=len(result.faults), undecided=given_up)


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
