"""The table, and the tests that a mode changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks.suites import MODES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.frameworks.runs import Result

HEAD = "| suite | mode | passed | failed | skipped | new failures |\n|---|---|---|---|---|---|"


def differing(plain: Result, other: Result) -> list[str]:
    """Return the tests that another mode changes for the worse, or leaves out."""
    bad = {"failed", "missing"}
    return sorted(
        test
        for test, outcome in plain.outcomes.items()
        if other.outcomes.get(test, "missing") != outcome
        and (other.outcomes.get(test, "missing") in bad or outcome == "passed")
    )


def table(suite: str, results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of one suite's table."""
    plain = results.get("plain")
    for mode, result in results.items():
        new = "" if plain is None or mode == "plain" else len(differing(plain, result))
        skipped = len(result.outcomes) - result.count("passed") - result.count("failed")
        ended = f" ({result.ended})" if result.ended else ""
        yield (
            f"| {suite} | {MODES[mode]}{ended} | {result.count('passed')} | {result.count('failed')} "
            f"| {skipped} | {new} |"
        )


def details(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield which tests a mode changes, and what they said; then those that failed once only."""
    plain = results.get("plain")
    for mode, result in results.items():
        if plain is not None and mode != "plain":
            changed = differing(plain, result)
            for test in changed:
                if outcome := result.outcomes.get(test):
                    yield f"  {mode}: {test} {outcome}: {_first_line(result.why.get(test, ''))}"
            missing = [test for test in changed if test not in result.outcomes]
            if missing:
                yield f"  {mode}: {len(missing)} did not run, the first of them {missing[0]}"
        for test, why in result.again.items():
            yield f"  {mode}: {test} needed a second try: {_first_line(why)}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]
