"""The store in memory keeps the contract, and what only it does."""

from __future__ import annotations

import pytest

from singleflight.stores import open_store
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock, LineContract, StoreContract
from singleflight.testing.contract_base import granted, ran


class TestMemoryStore(StoreContract, LineContract):
    """The contract, on a clock that is turned by hand."""

    can_advance = True
    counts_refusals = True

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that only moves when a test says so."""
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> MemoryStore:
        """An empty store."""
        return MemoryStore(clock=clock)

    def lose(self, store: MemoryStore, key: str) -> None:
        """Drop the record."""
        del store._records[key]


def test_a_name_means_one_store_in_the_whole_process() -> None:
    """The same memory URL gives the same store, another name another."""
    one, same, other = (open_store(f"memory://{name}") for name in ("one", "one/", "other"))

    assert one is same
    assert one is not other


def test_what_is_over_does_not_fill_the_memory() -> None:
    """Records whose life is over are dropped, however many keys pass through."""
    clock = FakeClock()
    store = MemoryStore(clock=clock, remember=1)
    for number in range(5000):
        ran(store, f"key-{number}", "run", ttl_ms=10)
        clock.advance(0.1)

    assert len(store._records) <= 64


def test_what_lives_survives_the_tidying() -> None:
    """No live record is dropped, however many keys there are."""
    store = MemoryStore(clock=FakeClock())
    for number in range(500):
        granted(store, f"key-{number}", "run")

    assert len(store._records) == 500
