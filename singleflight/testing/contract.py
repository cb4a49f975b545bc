"""The contract of `Store` as tests: whoever writes a store inherits them.

A store keeps the contract if every test here passes. Each test's docstring is the sentence it proves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from singleflight.testing.clock import RealClock
from singleflight.testing.contract_bounds import BoundRules
from singleflight.testing.contract_claim import ClaimRules
from singleflight.testing.contract_inspect import InspectRules
from singleflight.testing.contract_keep import KeepRules, LifeRules
from singleflight.testing.contract_runs import RunRules
from singleflight.testing.contract_slot import SlotRules

if TYPE_CHECKING:
    from singleflight.testing.clock import FakeClock


class StoreContract(ClaimRules, RunRules, KeepRules, LifeRules, SlotRules, InspectRules, BoundRules):
    """Subclass it, give it a ``store`` fixture and a way to `lose` a record, and run pytest.

    ```python
    class TestMyStore(StoreContract):
        tick = 0.1

        @pytest.fixture
        def store(self):
            store = MyStore(...)
            yield store
            store.close()

        def lose(self, store, key):
            store.delete_row(key)
    ```

    A store whose clock can be injected also overrides the fixture ``clock`` with a `FakeClock` and sets
    ``can_advance``; then the tests wait for nothing, and those on exact instants take part too.
    """

    @pytest.fixture
    def clock(self) -> FakeClock | RealClock:
        """The clock that the store goes by."""
        return RealClock()

    @pytest.fixture
    def key(self) -> str:
        """A key that no other test uses."""
        return f"singleflight:contract:{{{uuid4().hex}}}"
