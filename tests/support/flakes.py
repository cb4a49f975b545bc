"""What `.ci/run` says of tests that failed at first and passed when tried again, and how often that happens.

``python -m tests.support.flakes note CACHE`` keeps what has just failed, before it is tried again;
``python -m tests.support.flakes tell ENVIRONMENTS...`` prints the end of the run's output.
Needs the standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FIRST = "v/singleflight/first"
"""In pytest's cache: what failed before the second try."""
STILL = "v/cache/lastfailed"
"""In pytest's cache: what failed last."""
COUNT = "v/singleflight/count"
"""In pytest's cache: how many tests ran; `tests/conftest.py` writes it."""
KEPT = 20
"""How many runs the file remembers."""
FILE = Path(os.environ.get("SINGLEFLIGHT_FLAKES", ".tox/flakes.json"))
"""The last runs; a CI service that wants to know its own keeps this file from run to run."""


@dataclass(frozen=True)
class Run:
    """One run of all tests: how many ran, which passed at the second try only, which failed twice."""

    when: str
    count: int
    flaky: list[str]
    failed: list[str]

    def sentence(self) -> str:
        """Say what needed a second try."""
        text = f"{len(self.flaky)} of {self.count:,} tests needed a second try"
        text += f": {', '.join(self.flaky)}" if self.flaky else ""
        return text + (f"; {len(self.failed)} failed twice: {', '.join(self.failed)}" if self.failed else "")


def note(cache: Path) -> None:
    """Keep what has just failed: pytest forgets it when it passes."""
    if (cache / STILL).exists():
        (cache / FIRST).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cache / STILL, cache / FIRST)


def look(caches: dict[str, Path]) -> Run:
    """Read the caches of a run's environments; the newest Celery's tests go by their names alone."""
    count, flaky, failed = 0, [], []
    for environment, cache in caches.items():
        count += int(_read(cache / COUNT) or 0)
        first, still = _read(cache / FIRST) or {}, _read(cache / STILL) or {}
        where = "" if environment == "newest" else f"{environment}: "
        flaky += [where + test for test in first if test not in still]
        failed += [where + test for test in still]
        (cache / FIRST).unlink(missing_ok=True)
    return Run(datetime.now(UTC).isoformat(timespec="seconds"), count, sorted(flaky), sorted(failed))


def remember(run: Run, file: Path) -> list[Run]:
    """Add a run to the file and return all that it remembers, the newest last."""
    runs = [Run(**each) for each in _read(file) or []]
    runs = [*runs, run][-KEPT:]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([vars(each) for each in runs], indent=1) + "\n")
    return runs


def rate(runs: list[Run], file: Path) -> str:
    """Say how often the last runs needed a second try, and name what did so twice."""
    times = Counter(test for run in runs for test in run.flaky)
    needed = sum(1 for run in runs if run.flaky)
    text = f"this is the first run in {file}"
    if len(runs) > 1:
        text = f"of the last {len(runs)} runs in {file} {needed} needed one"
    twice = [f"{test} ({often} times)" for test, often in times.most_common() if often > 1]
    rule = "; mend these, or rethink their timing (CONTRIBUTING.md, Flaky tests): " if twice else ""
    return text + rule + ", ".join(twice)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def main(arguments: list[str]) -> None:
    """Do what `.ci/run` asks for."""
    verb, *names = arguments
    if verb == "note":
        note(Path(names[0]))
    else:
        run = look({name: Path(f".tox/{name}/.pytest_cache") for name in names})
        print(f"\n{run.sentence()}\n{rate(remember(run, FILE), FILE)}")  # noqa: T201 - it is a command


if __name__ == "__main__":
    main(sys.argv[1:])
