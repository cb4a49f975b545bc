"""`singleflight init` goes by what a store says of itself."""

from __future__ import annotations

from click.testing import CliRunner

from singleflight.cli.operators.init import init


def test_a_store_that_says_nothing_of_its_set_up_is_told_from_one_that_has_tables() -> None:
    """Nothing can be made for it, and that is said instead of a success."""
    result = CliRunner().invoke(init, ["memory://"])

    assert result.exit_code != 0
    assert "how it is set up" in result.output


def test_init_without_a_store_asks_for_one() -> None:
    """Neither an argument nor a file nor the environment names one."""
    result = CliRunner().invoke(init, [], env={"SINGLEFLIGHT_URL": None})

    assert result.exit_code != 0
    assert "which store?" in result.output
