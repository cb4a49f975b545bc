"""The fixture for users' own tests: `docs/testing.md`, run by pytest as a user would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs/testing.md"


def test_the_page_on_testing_is_true(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files, as they stand there, are a project whose tests pass."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a user may have none of ours
    files = re.findall(
        r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    for name, text in files:
        pytester.makepyfile(**{name: text})
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    assert [name for name, _ in files] == [
        "conftest", "shop", "test_shop", "test_waiting", "test_broker"
    ]  # fmt: skip
    result.assert_outcomes(passed=5)
