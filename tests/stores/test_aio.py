"""The async face: nothing stays held after a cancellation, and no full executor delays a renewal."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from singleflight import Busy, ConfigurationError, Conflict, LeaseLost, Outcome, current_lease
from singleflight.aio import AsyncLease, lease, try_lease
from singleflight.keys import lease_key
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from singleflight.lease import Granted
    from singleflight.stores.base import Claim, Release


class SlowStore(MemoryStore):
    """A store whose claims and releases begin when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.claiming, self.may_claim = threading.Event(), threading.Event()
        self.may_release = threading.Event()
        self.may_release.set()

    def claim(self, claim: Claim) -> Granted | Busy:
        """Wait for the test, after saying so."""
        self.claiming.set()
        assert self.may_claim.wait(20)
        return super().claim(claim)

    def release(self, release: Release) -> bool:
        """Wait for the test."""
        assert self.may_release.wait(20)
        return super().release(release)


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"nightly-{uuid4().hex}"


async def freed(store: MemoryStore, name: str) -> bool:
    """Wait until nobody holds the lease; False if somebody still does after a long time."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        seen = store.peek(lease_key("singleflight", name))
        if seen is not None and not seen.record.held:
            return True
        await asyncio.sleep(0.01)
    return False


def test_a_lease_is_had_used_and_given_back(name: str) -> None:
    """A lease is a lease: others are refused while it is held, and granted afterwards."""
    store = MemoryStore()

    async def main() -> None:
        first = await try_lease(store, name)
        assert isinstance(first, AsyncLease)
        assert isinstance(await try_lease(store, name), Busy)
        await first.ensure(1)
        first.check()
        assert (first.held, first.key) == (True, lease_key("singleflight", name))
        assert 0 < first.expires_in <= 30
        assert await first.release() is True
        assert not first.held
        async with lease(store, name) as second:
            assert second.fence > first.fence
            assert second.holder.task == name
            inside = current_lease()
            assert inside is not None
            assert inside.fence == second.fence
            with pytest.raises(Conflict):
                async with lease(store, name, wait=0.01):
                    pass
        assert current_lease() is None
        assert repr(second).startswith("<AsyncLease ")

    asyncio.run(main())


def test_a_failed_block_is_recorded_as_failed(name: str) -> None:
    """The outcome in the store says how the block ended, and its error reaches the caller."""
    store = MemoryStore()

    async def main() -> None:
        with pytest.raises(KeyError):
            async with lease(store, name):
                raise KeyError(name)

    asyncio.run(main())
    seen = store.peek(lease_key("singleflight", name))
    assert seen is not None
    assert seen.record.outcome == Outcome.FAILED


def test_one_who_waits_gets_it_in_the_end(name: str) -> None:
    """A waiting task gets the lease when the holder is done, and the loop goes on meanwhile."""
    store = MemoryStore()
    order: list[str] = []

    async def holder() -> None:
        async with lease(store, name):
            order.append("first")
            await asyncio.sleep(0.2)
            order.append("first ends")

    async def waiter() -> None:
        async with lease(store, name, wait=None):
            order.append("second")

    async def main() -> None:
        first = asyncio.create_task(holder())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(asyncio.gather(first, waiter()), 20)

    asyncio.run(main())
    assert order == ["first", "first ends", "second"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_claim_leaves_nothing_held(name: str, times: int) -> None:
    """Cancelled while the store still thinks, once or twice, the task leaves no lease and no window."""
    store = SlowStore()

    async def main() -> None:
        task = asyncio.create_task(try_lease(store, name, window=60))
        await asyncio.to_thread(store.claiming.wait, 20)
        for _ in range(times):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.may_claim.set()
        assert await freed(store, name)
        assert isinstance(await try_lease(store, name, window=60), AsyncLease)

    asyncio.run(main())


def test_a_claim_cancelled_in_the_queue_leaves_nothing_held(name: str) -> None:
    """Cancelled before its request had a thread, the task has never asked."""
    store = SlowStore()

    async def main() -> None:
        others = [asyncio.create_task(try_lease(store, f"{name}{number}")) for number in range(20)]
        task = asyncio.create_task(try_lease(store, name))
        await asyncio.to_thread(store.claiming.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.may_claim.set()
        await asyncio.gather(*others)
        assert store.peek(lease_key("singleflight", name)) is None

    asyncio.run(main())


def test_a_cancelled_body_gives_its_lease_back(name: str) -> None:
    """Cancelled inside the block, and again while it gives the lease back, the task leaves nothing held."""
    store = SlowStore()
    store.may_claim.set()

    async def body(inside: asyncio.Event) -> None:
        async with lease(store, name):
            inside.set()
            await asyncio.sleep(60)

    async def main() -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(body(inside))
        await asyncio.wait_for(inside.wait(), 20)
        store.may_release.clear()
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.may_release.set()
        assert await freed(store, name)

    asyncio.run(main())


def test_one_who_waits_and_is_cancelled_holds_nothing(name: str) -> None:
    """Cancelled while it waits for another's lease, the task never gets it afterwards."""
    store = MemoryStore()

    async def main() -> None:
        first = await try_lease(store, name)
        assert isinstance(first, AsyncLease)

        async def wait() -> None:
            async with lease(store, name, wait=None):
                raise AssertionError("never")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await first.release()
        assert await freed(store, name)

    asyncio.run(main())


def test_a_full_executor_delays_no_renewal(name: str) -> None:
    """With the loop's own threads all busy, leases are had, renewed and given back."""
    store = MemoryStore()
    gate = threading.Event()

    async def main() -> None:
        blocked = [asyncio.create_task(asyncio.to_thread(gate.wait, 60)) for _ in range(100)]
        await asyncio.sleep(0.1)
        async with lease(store, name, ttl=1) as held:
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                held.check()
                await asyncio.sleep(0.05)
            assert isinstance(await try_lease(store, name), Busy)
        gate.set()
        await asyncio.gather(*blocked)

    asyncio.run(main())


def test_a_lost_lease_cancels_the_block_that_asked_for_it(name: str) -> None:
    """When the lease is evicted, the block ends with `LeaseLost`, and the task can go on."""
    store = MemoryStore()

    async def body() -> None:
        async with lease(store, name, ttl=0.5, cancel_on_lost=True):
            store.evict(lease_key("singleflight", name))
            await asyncio.sleep(60)

    async def main() -> str:
        with pytest.raises(LeaseLost):
            await body()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)
        return "went on"

    assert asyncio.run(main()) == "went on"


def test_a_cancellation_from_outside_is_no_lost_lease(name: str) -> None:
    """A block that somebody else cancels ends cancelled, also when it asked to hear of a lost lease."""
    store = MemoryStore()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), lease(store, name, cancel_on_lost=True):
                await asyncio.sleep(60)

    asyncio.run(main())


def test_a_lost_lease_cancels_nobody_who_did_not_ask(name: str) -> None:
    """Without the option the block goes on, and learns of the loss when it asks."""
    store = MemoryStore()

    async def main() -> None:
        async with lease(store, name, ttl=0.5) as held:
            store.evict(lease_key("singleflight", name))
            for _ in range(1000):
                await asyncio.sleep(0.02 if held.held else 0)
            with pytest.raises(LeaseLost):
                held.check()

    asyncio.run(main())


def test_a_wrong_value_is_refused(name: str) -> None:
    """Arguments are checked as in the plain face."""

    async def waiting(wait: object) -> None:
        async with lease(MemoryStore(), name, wait=wait):  # type: ignore[arg-type]
            pass

    with pytest.raises(ConfigurationError):
        asyncio.run(try_lease(MemoryStore(), name, ttl=-1))
    with pytest.raises(ConfigurationError, match="wait='5' is not a duration"):
        asyncio.run(waiting("5"))
    asyncio.run(waiting(timedelta(seconds=5)))


def test_a_run_that_has_ended_is_not_waited_for(name: str) -> None:
    """The same run is never granted again, so whoever would wait for ever is told at once."""
    store = MemoryStore()

    async def once() -> None:
        async with lease(store, name, run_id="monday", wait=None):
            pass

    asyncio.run(once())
    with pytest.raises(Conflict, match="finished"):
        asyncio.run(asyncio.wait_for(once(), 20))
