"""The command `./dev torture`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.torture import table
from tests.torture.history import read
from tests.torture.judge import judge, undecided
from tests.torture.nemesis import FAULTS
from tests.torture.report import keep
from tests.torture.run import Setting, torture
from tests.torture.stores import STARTS
from tests.torture.versus import versus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.torture.judge import Fault


def main() -> int:
    """Do as told; 1 if anything is wrong."""
    given = arguments()
    if given.replay:
        history = read(given.replay.read_text("utf-8").splitlines())
        faults = judge(history)
        say(faults, as_json=given.json)
        return bool(faults)
    if given.mutants is not None:
        return table.mutants(given.mutants, seconds=given.minutes * 60, seed=given.seed)
    if given.peers:
        versus(seconds=given.minutes * 60, seed=given.seed)
        return 0
    frameworks = tuple(name for name in ("celery", "dramatiq") if getattr(given, name))
    if given.campaign is not None:
        return table.campaign(
            given.campaign,
            seconds=given.minutes * 60,
            seeds=range(given.seed, given.seed + given.runs),
            frameworks=frameworks,
            broker=given.broker,
        )
    setting = Setting(
        store=given.store,
        seconds=given.minutes * 60,
        seed=given.seed,
        clients=given.clients,
        frameworks=frameworks,
        broker=given.broker,
        beats=given.beats,
        faults=tuple(filter(None, given.faults.split(","))),
    )
    folder = given.keep or Path(tempfile.mkdtemp(prefix="torture-"))
    result = torture(setting, folder, lambda line: print(line, file=sys.stderr))
    given_up = undecided(result.history)
    facts = {"store": setting.store, "seed": setting.seed, **result.counts(), "undecided": len(given_up)}
    print(json.dumps(facts) if given.json else "  ".join(f"{name}: {n}" for name, n in facts.items()))
    say(result.faults, as_json=given.json)
    if result.faults:
        print(*keep(result.history, result.faults, folder), sep="\n", file=sys.stderr)
    return bool(result.faults)


def say(faults: Sequence[Fault], *, as_json: bool) -> None:
    """Tell what is wrong, a line for each fault."""
    for fault in faults:
        line = f"{fault.rule} at {fault.at:.3f}, {fault.key}: {fault.text}"
        print(json.dumps(asdict(fault)) if as_json else line)
    if not faults and not as_json:
        print("nothing is wrong")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="./dev torture",
        description="Many clients, one real store, a nemesis; then a judge of what was seen.",
    )
    parser.add_argument("--store", choices=sorted(STARTS), default="valkey")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (built in: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the plan of faults and of what clients do")
    parser.add_argument("--clients", type=int, default=6, help="processes of plain clients (built in: 6)")
    parser.add_argument("--celery", action="store_true", help="Celery workers and publishers beside them")
    parser.add_argument("--dramatiq", action="store_true", help="Dramatiq workers and publishers beside them")
    parser.add_argument("--beats", action="store_true", help="three replicas of a Celery beat beside them")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which, by commas (built in: all)")
    parser.add_argument("--json", action="store_true", help="print facts and faults as JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where all that was seen is kept")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="judge a history again, and run nothing")
    parser.add_argument(
        "--campaign", nargs="*", metavar="STORE", help="print the table of stores (built in: all) by faults"
    )
    parser.add_argument("--peers", action="store_true", help="the table of other libraries' locks and ours")
    parser.add_argument("--runs", type=int, default=1, help="runs for each cell of that table (built in: 1)")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="break singleflight, and see that it is found"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
