"""What operators may ask of a store: which keys there are, and who was turned away."""
# ruff: noqa: S101 - tests assert

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from singleflight.lease import Reason
from singleflight.stores.optional import Listing
from singleflight.testing.contract_base import LONG, Rules, claim, granted, look, ran, refused, release

if TYPE_CHECKING:
    from singleflight.stores.base import Store


class InspectRules(Rules):
    """Listing keys, and counting refusals."""

    def test_scan_finds_every_key_of_a_prefix_once(self, store: Store) -> None:
        """Keys of one prefix are listed once each; a longer or an odd prefix is another."""
        if not isinstance(store, Listing):
            pytest.skip("this store does not list its keys")
        prefix = f"p*[?]^{uuid4().hex}"
        keys = [f"{prefix}:name:{{{uuid4().hex}}}" for _ in range(30)]
        for key in (*keys, f"{prefix}2:name:{{{uuid4().hex}}}", f"{prefix[1:]}:name:{{{uuid4().hex}}}"):
            ran(store, key, "one")

        assert sorted(store.scan(prefix)) == sorted(keys)
        assert list(store.scan(f"{prefix}none")) == []

    def test_refusals_are_counted_with_the_last_reason(self, store: Store, key: str) -> None:
        """A claim that meets another run is counted; one that waits, or is the same run, is not."""
        if not self.counts_refusals:
            pytest.skip("this store does not count refusals")
        granted(store, key, "one", window_ms=LONG)
        refused(store, key, "two")
        refused(store, key, "three", wait_ms=LONG)
        claim(store, key, "one", 1)
        met = look(store, key).record
        release(store, key, "one")
        refused(store, key, "one")
        refused(store, key, "four", window_ms=LONG)
        after = look(store, key)

        assert (met.refused, met.refused_reason) == (1, Reason.RUNNING)
        assert (after.record.refused, after.record.refused_reason) == (2, Reason.WINDOW)
        assert 0 <= after.now_ms - after.record.refused_ms < LONG

    def test_the_count_outlives_later_runs(self, store: Store, key: str) -> None:
        """A grant and an eviction leave the count as it is."""
        if not self.counts_refusals:
            pytest.skip("this store does not count refusals")
        granted(store, key, "one")
        refused(store, key, "two")
        store.evict(key)
        ran(store, key, "three")

        assert look(store, key).record.refused == 1
