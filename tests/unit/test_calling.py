"""Who publishes whom a store calls, and what becomes of it when that fails."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from singleflight.errors import ConfigurationError
from singleflight.keys import lease_key
from singleflight.lease import Busy, Lease, Outcome, Reason
from singleflight.leases.calling import Calling
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.stores.lining import Wait
from singleflight.stores.memory import MemoryStore
from singleflight.tasks.line import LONGEST, Sweep, way_to_wait
from tests.support.core import Line

if TYPE_CHECKING:
    from singleflight.stores.lining import Called

KEY = lease_key("t", "nightly")


class Process:
    """A process with leases in a store, that publishes into a list."""

    def __init__(self, store: MemoryStore) -> None:
        self.published: list[Called] = []
        self.broken: Exception | None = None
        self.leases = Leases(store, calling=Calling(store, "t:home", self.publish))

    def publish(self, called: Called) -> None:
        """Take a message, or fail as told."""
        if self.broken is not None:
            raise self.broken
        self.published.append(called)

    def request(self, run: str, *, call_no: int = 0, order: int = 0) -> Request:
        """Return a claim."""
        return Request(KEY, "nightly", run, new_token(), call_no=call_no, order=order)

    def claim(self, run: str) -> Lease:
        """Claim, and expect a grant."""
        lease = self.leases.claim(self.request(run))
        assert isinstance(lease, Lease)
        return lease

    def park(self, run: str) -> None:
        """Put a run into the line."""
        answer, order = self.leases.park(self.request(run), Wait(home="t:home", message=run.encode()))
        assert isinstance(answer, Busy)
        assert order > 0


@pytest.fixture
def store() -> MemoryStore:
    """Return a store."""
    return MemoryStore()


def test_a_release_publishes_the_next_one_and_notes_that(store: MemoryStore) -> None:
    """The message has its number and order beside it, and leaves the line."""
    process = Process(store)
    lease = process.claim("a")
    process.park("b")
    process.park("c")

    assert lease.release(Outcome.FINISHED)
    assert [called.message for called in process.published] == [b"b"]
    (called,) = process.published
    waiting = {one.run_id: one.standing for one in store.line_of(KEY).shown}
    assert waiting == {"b": "called", "c": "ready"}
    answer = process.leases.claim(process.request("b", call_no=called.call_no, order=called.order))
    assert isinstance(answer, Lease)
    assert [one.run_id for one in store.line_of(KEY).shown] == ["c"]


def test_a_release_is_through_although_nothing_can_be_published(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the broker is told once, and the run stays in the line."""
    process = Process(store)
    lease = process.claim("a")
    process.park("b")
    process.broken = OSError("no broker")

    assert lease.release(Outcome.FINISHED)
    process.leases.calling.publish(store.sweep(["t:home"]).called)  # type: ignore[union-attr]
    assert store.line_of(KEY).waiting == 1
    assert caplog.text.count("no broker") == 1


def test_a_claim_that_is_refused_publishes_whom_it_calls(store: MemoryStore) -> None:
    """Whoever hears first that the key is free sends the first in line on, and waits behind it."""
    process, fresh = Process(store), Process(store)
    process.claim("a")
    process.park("b")
    store.evict(KEY)

    answer = fresh.leases.claim(fresh.request("c"))
    assert isinstance(answer, Busy)
    assert answer.reason is Reason.RESERVED
    assert [called.message for called in fresh.published] == [b"b"]


def test_who_waits_no_longer_lets_the_next_one_pass(store: MemoryStore) -> None:
    """A run that gives up its slot leaves the line as well."""
    process = Process(store)
    lease = process.claim("a")
    process.park("b")
    process.park("c")
    process.leases.releasing.unqueue(KEY, "b")
    lease.release(Outcome.FINISHED)

    assert [called.message for called in process.published] == [b"c"]


def test_a_sweep_publishes_what_nobody_else_has(store: MemoryStore) -> None:
    """Where no home was named at the release, the next look does it."""
    process = Process(store)
    request = process.request("a")
    lease = process.leases.claim(request)
    assert isinstance(lease, Lease)
    process.park("b")
    sweep = Sweep(process.leases)
    assert sweep.look() == LONGEST
    store.evict(KEY)

    assert sweep.look() <= LONGEST
    assert [called.message for called in process.published] == [b"b"]


def test_a_sweep_starts_and_stops(store: MemoryStore) -> None:
    """It looks at once, and is over when it is told."""
    process = Process(store)
    process.claim("a")
    process.park("b")
    store.evict(KEY)
    sweep = Sweep(process.leases)
    sweep.start()
    end = time.monotonic() + 10
    while not process.published and time.monotonic() < end:
        time.sleep(0.01)
    sweep.stop()

    assert [called.message for called in process.published] == [b"b"]
    assert "singleflight-sweep" not in [thread.name for thread in threading.enumerate()]


def test_a_store_without_a_line_is_refused() -> None:
    """With the remedy."""
    with pytest.raises(ConfigurationError, match="waiting='countdown'"):
        Calling(Line(time.time), "t:home", print)


def test_another_way_to_wait_is_refused() -> None:
    """Naming those there are."""
    with pytest.raises(ConfigurationError, match="'queue' is unknown; write one of auto, line, countdown"):
        way_to_wait("queue")
