"""The store that the documentation shows keeps the contract, line by line as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from singleflight.testing import FakeClock, StoreContract

PAGE = Path(__file__).parents[2] / "docs" / "custom-store.md"


def printed() -> str:
    """Return the Python block of the page."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


def folder_store(*arguments: Any, **options: Any) -> Any:
    """Make the store that the page shows."""
    names: dict[str, Any] = {}
    exec(compile(printed(), str(PAGE), "exec"), names)
    return names["FolderStore"](*arguments, **options)


def test_the_example_is_short() -> None:
    """A whole store is fewer than eighty lines."""
    lines = printed().splitlines()

    assert len([line for line in lines if line.strip()]) < 80


class TestFolderStore(StoreContract):
    """The contract, by the machine's clock."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        """A store in a folder of its own."""
        return folder_store(tmp_path, timeout=10)

    def lose(self, store: Any, key: str) -> None:
        """Delete the file."""
        store.file_of(key).unlink(missing_ok=True)


class TestFolderStoreOnATurnedClock(TestFolderStore):
    """The contract on exact instants."""

    can_advance = True

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that only moves when a test says so."""
        return FakeClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> Any:
        """A store that goes by that clock."""
        return folder_store(tmp_path, timeout=10, clock=clock)
