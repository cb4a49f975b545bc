"""What a store does not do yet; each test says what must hold, and why it does not."""

from __future__ import annotations

import pytest

from singleflight.lease import Reason
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock
from singleflight.testing.contract_base import claim, ran


@pytest.mark.xfail(
    strict=True,
    reason="a record remembers 64 runs of its key; until it is by time, a busy key forgets in seconds",
)
def test_a_late_copy_is_known_however_many_runs_came_after_it() -> None:
    """Ten runs a second for ten seconds: that is well within the time for which runs are remembered."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    for number in range(100):
        ran(store, "singleflight:key", f"run-{number}")
        clock.advance(0.1)

    answer = claim(store, "singleflight:key", "run-0", token="copy")
    assert getattr(answer, "reason", None) is Reason.FINISHED
