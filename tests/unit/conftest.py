"""What the core's tests share."""

from __future__ import annotations

import pytest

from singleflight.leases import keeper
from tests.support.core import Core


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    """One process whose keeper and store go by the same fake clock."""
    core = Core()
    monkeypatch.setattr(keeper._Process, "keeper", core.keeper)
    return core
