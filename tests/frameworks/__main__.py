"""``./dev frameworks``: run the suites, print the table, end with 1 if a mode has new failures."""

from __future__ import annotations

import argparse
import sys
import time

from tests.frameworks.report import HEAD, details, differing, table
from tests.frameworks.runs import Result, behave, kept, load, run
from tests.frameworks.sources import bring
from tests.frameworks.suites import MODES, SUITES


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="./dev frameworks",
        description="Run the frameworks' own test suites with singleflight installed. All takes two hours.",
    )
    parser.add_argument(
        "frameworks",
        nargs="*",
        default=["celery", "dramatiq"],
        help="such as celery==5.6.* or dramatiq==1.17.*; the newest Celery and Dramatiq unless given",
    )
    parser.add_argument("--suite", action="append", choices=[suite.name for suite in SUITES])
    parser.add_argument("--mode", action="append", choices=list(MODES), help="repeatable; all unless given")
    parser.add_argument("--table", action="store_true", help="run nothing: print what the last runs found")
    asked = parser.parse_args()
    behave()
    lines, new = [HEAD], 0
    for requirement in asked.frameworks:
        release = bring(requirement)
        for suite in SUITES:
            if suite.framework != release.framework or suite.name not in (asked.suite or [suite.name]):
                continue
            results: dict[str, Result] = {}
            for mode in MODES:
                if not asked.table and mode in (asked.mode or MODES):
                    started = time.monotonic()
                    print(f"{suite.name} {release.version}, {mode} ...", end="", flush=True)
                    results[mode] = run(release, suite, mode)
                    print(f" {time.monotonic() - started:.0f} s", flush=True)
                elif known := load(kept(release, suite, mode)):
                    results[mode] = known
            lines += table(f"{suite.name} {release.version}", results)
            print(*details(results), sep="\n", flush=True)
            plain = results.get("plain", Result())
            new += sum(len(differing(plain, each)) for each in results.values())
    print(*lines, sep="\n")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
