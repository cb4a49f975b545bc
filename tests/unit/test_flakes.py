"""What CI says of tests that needed a second try."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.flakes import COUNT, FIRST, KEPT, STILL, Run, look, note, rate, remember


def write(path: Path, content: object) -> None:
    """Write JSON as pytest's cache does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def run(*flaky: str) -> Run:
    """Return a run in which these tests needed a second try."""
    return Run("2026-01-01T00:00:00+00:00", 100, list(flaky), [])


def test_what_passes_at_the_second_try_is_counted_and_named(tmp_path: Path) -> None:
    """What failed at first and no more is flaky, what failed again has failed, and all environments count."""
    newest, beside = tmp_path / "newest", tmp_path / "beside"
    write(newest / COUNT, 2900)
    write(beside / COUNT, 50)
    write(newest / STILL, {"test_a": True, "test_b": True})
    write(beside / STILL, {"test_c": True})
    note(newest)
    note(beside)
    write(newest / STILL, {"test_b": True})
    write(beside / STILL, {})

    found = look({"newest": newest, "beside": beside, "never-made": tmp_path / "nothing"})

    expected = "2 of 2,950 tests needed a second try: beside: test_c, test_a; 1 failed twice: test_b"
    assert found.sentence() == expected


def test_a_run_without_failures_says_so(tmp_path: Path) -> None:
    """Nothing is left over from the run before."""
    write(tmp_path / COUNT, 2900)
    write(tmp_path / FIRST, {"test_a": True})
    look({"newest": tmp_path})

    assert look({"newest": tmp_path}).sentence() == "0 of 2,900 tests needed a second try"


def test_the_last_runs_are_kept_and_no_more(tmp_path: Path) -> None:
    """The file keeps twenty runs, survives being garbled, and is made where it is missing."""
    file = tmp_path / "folder" / "flakes.json"
    for number in range(KEPT + 3):
        runs = remember(run(f"test_{number}"), file)
    assert [each.flaky for each in runs] == [[f"test_{number}"] for number in range(3, KEPT + 3)]

    file.write_text("garbage")
    assert len(remember(run(), file)) == 1


def test_a_test_that_was_flaky_twice_is_named_with_the_rule() -> None:
    """The rate of the last runs is said, and what needs mending."""
    said = rate([run("test_a"), run(), run("test_a", "test_b")], Path("kept"))

    assert said == (
        "of the last 3 runs in kept 2 needed one; mend these, or rethink their timing "
        "(CONTRIBUTING.md, Flaky tests): test_a (2 times)"
    )
    assert rate([run()], Path("kept")) == "this is the first run in kept"
