"""The comparison of the frameworks' own suites with and without singleflight."""

from __future__ import annotations

from tests.frameworks.report import details, differing, table
from tests.frameworks.runs import Result

PLAIN = Result({"a": "passed", "b": "passed", "c": "failed", "d": "skipped", "e": "passed"})
OTHER = Result(
    {"a": "passed", "b": "failed", "c": "failed", "d": "passed", "e": "skipped"},
    why={"b": "\nAssertionError: no\nmore", "c": "theirs"},
    again={"a": "Timeout"},
)


def test_what_a_mode_makes_worse_is_a_difference_and_nothing_else() -> None:
    """New failures, tests that are skipped or missing now; not those that fail without us, nor new passes."""
    assert differing(PLAIN, OTHER) == ["b", "e"]
    assert differing(PLAIN, Result()) == ["a", "b", "c", "d", "e"]
    assert differing(PLAIN, PLAIN) == []


def test_the_table_counts_and_the_details_name_each_difference() -> None:
    """One line for each mode, then each difference with the first line of what it said."""
    results = {"plain": PLAIN, "installed": OTHER, "singleton": Result(ended="ended after 9 s")}

    plain, installed, cut = table("celery-unit 5.7.0", results)

    assert plain == "| celery-unit 5.7.0 | without singleflight | 3 | 1 | 1 |  |"
    assert installed == "| celery-unit 5.7.0 | `install` on every app or broker | 2 | 2 | 1 | 2 |"
    assert "(ended after 9 s)" in cut
    assert cut.endswith("| 0 | 0 | 0 | 5 |")
    lines = list(details({"plain": PLAIN, "installed": OTHER}))
    assert lines == [
        "  installed: b failed: AssertionError: no",
        "  installed: e skipped: ",
        "  installed: a needed a second try: Timeout",
    ]
    assert list(details({"plain": PLAIN, "singleton": Result()})) == [
        "  singleton: 5 did not run, the first of them a"
    ]
