"""Async code at a store that hangs: others are not held up, nor is the end of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from singleflight import aio
from singleflight.errors import StoreUnavailable
from tests.support.core import Line


def test_waiters_at_a_store_that_hangs_hold_up_no_other_store() -> None:
    """A hundred of them take no thread that a healthy store needs."""
    go_on = threading.Event()
    hung, healthy = Line(time.time), Line(time.time)
    hung.before = lambda _operation: go_on.wait(30) and None  # type: ignore[func-returns-value]

    async def main() -> None:
        waiters = [asyncio.create_task(_hold(hung, f"{n}")) for n in range(100)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10), aio.lease(healthy, "quick"):
            pass
        for waiter in waiters:
            waiter.cancel()
        go_on.set()
        await asyncio.gather(*waiters, return_exceptions=True)

    asyncio.run(main())


async def _hold(store: Line, name: str) -> None:
    async with aio.lease(store, name, wait=60):
        pass


def test_what_a_cancelled_waiter_had_not_begun_to_ask_is_never_asked() -> None:
    """A store that hangs is not kept busy for those who have gone."""
    go_on = threading.Event()
    store = Line(time.time)

    def hang(operation: str) -> None:
        if operation == "claim":
            go_on.wait(30)
            raise StoreUnavailable("hangs")

    store.before = hang

    async def main() -> None:
        waiters = [asyncio.create_task(_hold(store, f"{n}")) for n in range(50)]
        async with asyncio.timeout(10):
            while "claim" not in store.calls:  # noqa: ASYNC110 - set in another thread
                await asyncio.sleep(0.01)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        go_on.set()
        await asyncio.sleep(0.2)

    asyncio.run(main())

    assert store.calls.count("claim") <= 8


EXIT = """
    import asyncio, threading, time
    from singleflight import aio
    from tests.support.core import Line

    store = Line(time.time)
    store.before = lambda _operation: threading.Event().wait(30) and None

    async def hold(name):
        async with aio.lease(store, name, wait=60):
            pass

    async def main():
        waiters = [asyncio.create_task(hold(f"{n}")) for n in range(200)]
        while "claim" not in store.calls:
            await asyncio.sleep(0.01)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)

    asyncio.run(main())
    print("ends", time.time(), flush=True)
"""


@pytest.mark.timeout(70)
def test_two_hundred_cancelled_waiters_at_a_store_that_hangs_do_not_hold_up_the_exit() -> None:
    """What is under way gets a moment, and no more."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EXIT)], capture_output=True, text=True, timeout=60
    )
    word, moment = ended.stdout.split()

    assert (ended.returncode, word) == (0, "ends"), ended.stderr
    assert time.time() - float(moment) < 10
