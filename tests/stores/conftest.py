"""One Valkey server for all tests of stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A running server."""
    with ValkeyServer() as server:
        yield server
