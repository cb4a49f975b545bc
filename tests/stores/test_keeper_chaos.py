"""The keeper's promises on a real server behind a line that fails: no healthy lease is lost.

Each trouble once by default, and twenty times with SINGLEFLIGHT_CHAOS=1.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from singleflight import Lease, StoreUnavailable, try_lease
from singleflight.events import Event, Notify
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.leases.keeper import process_keeper
from singleflight.stores import open_store
from tests.support.proxy import FaultProxy, Mode
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import ValkeyServer

CHAOS = bool(os.environ.get("SINGLEFLIGHT_CHAOS"))
ROUNDS = 20 if CHAOS else 1
TTL = 5.0 if CHAOS else 3.0
"""Seconds of a healthy lease: few, or a round would be long; a crowded machine needs some to itself."""


@contextmanager
def healthy(server: ValkeyServer, count: int = 5) -> Iterator[list[float]]:
    """Hold leases on a line of their own; afterwards, none of them may have been lost."""
    lost: list[float] = []
    store, began = open_store(server.url), time.monotonic()
    leases = [
        try_lease(store, uuid4().hex, ttl=TTL, on_lost=lambda _: lost.append(time.monotonic() - began))
        for _ in range(count)
    ]
    assert all(isinstance(lease, Lease) for lease in leases)
    yield lost
    assert not lost
    assert all(isinstance(lease, Lease) and lease.held and lease.release() for lease in leases)
    store.close()


def late_releases(server: ValkeyServer, stack: ExitStack) -> None:
    """After an outage, 600 late releases go over the slow line of a lease that is held."""
    line = stack.enter_context(FaultProxy(server.port))
    store, lost = open_store(line.url), list[Lease]()
    late = [try_lease(store, uuid4().hex, ttl=60) for _ in range(600)]
    held = try_lease(store, uuid4().hex, ttl=TTL, on_lost=lost.append)
    assert isinstance(held, Lease)
    line.refuse()
    for lease in late:
        assert isinstance(lease, Lease)
        lease.release()
    line.delay = 0.002
    line.accept_again()
    key = [lease.key for lease in late if isinstance(lease, Lease)]
    until(lambda: not store.peek(key[-1]).record.held, 60, "the last release")  # type: ignore[union-attr]
    assert not lost
    assert held.release()


def hung_stores(server: ValkeyServer, stack: ExitStack) -> None:
    """Eight stores hang while their leases are due."""
    for _ in range(8):
        line = stack.enter_context(FaultProxy(server.port))
        assert isinstance(try_lease(open_store(line.url), uuid4().hex, ttl=10), Lease)
        line.mode = Mode.HOLD
    time.sleep(10 / 3 + 2 * TTL)


def slow_callbacks(server: ValkeyServer, stack: ExitStack) -> None:
    """Holders and listeners take longer than a ttl over what they are told."""
    go_on, told = threading.Event(), list[Any]()
    stack.callback(go_on.set)

    def slow(what: Event | Lease) -> None:
        told.append(what)
        go_on.wait(3 * TTL)

    store = open_store(server.url)
    slowly = Leases(store, Notify([lambda event: event.kind == "lost" and slow(event)]))
    for _ in range(20):
        request = Request(key=uuid4().hex, task="slow", run_id=uuid4().hex, token=new_token(), ttl=TTL)
        slowly.claim(request, on_lost=slow)
        store.evict(request.key)
    until(lambda: len(told) >= 20, 60, "all who lost theirs")
    time.sleep(2 * TTL)


def broken_log(server: ValkeyServer, stack: ExitStack) -> None:
    """Each line to the log raises, and each loss is told all the same."""

    def fail(_record: logging.LogRecord) -> bool:
        raise AttributeError("request_id")

    log, told = logging.getLogger("singleflight"), list[Lease]()
    log.addFilter(fail)
    stack.callback(log.removeFilter, fail)
    store = open_store(server.url)
    for number in range(3):
        lease = try_lease(store, uuid4().hex, ttl=TTL, on_lost=told.append)
        assert isinstance(lease, Lease)
        store.evict(lease.key)
        until(lambda: len(told) > number, 60, "the loss")  # noqa: B023


def a_store_that_comes_and_goes(server: ValkeyServer, stack: ExitStack) -> None:
    """Claims, releases and renewals of a store that flaps, from many threads."""
    line = stack.enter_context(FaultProxy(server.port))
    store, over = open_store(line.url), threading.Event()

    def work() -> None:
        while not over.is_set():
            with suppress(StoreUnavailable):
                lease = try_lease(store, uuid4().hex, ttl=TTL)
                assert isinstance(lease, Lease)
                lease.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 2 * TTL
    while time.monotonic() < end:
        line.mode = Mode.HOLD
        time.sleep(0.4)
        line.mode = Mode.PASS
        time.sleep(0.4)
    over.set()
    for thread in threads:
        thread.join(30)


def thousands_at_once(server: ValkeyServer, stack: ExitStack) -> None:
    """Very many leases fall due in one moment; none of them is lost either."""
    count, lost = 60_000 if CHAOS else 3_000, list[Lease]()
    store = open_store(server.url)
    leases = [try_lease(store, f"{uuid4().hex}", ttl=60, on_lost=lost.append) for _ in range(count)]
    keeper = process_keeper()
    mine = {lease.token for lease in leases if isinstance(lease, Lease)}
    now = keeper.clock()
    for token in mine:
        keeper._books[token].due = now
    keeper._timer.ring(now)
    until(lambda: all(keeper._books[token].due > now for token in mine), 45, "all renewals", every=0.5)
    assert len(mine) == count
    assert not lost
    stack.callback(store.close)
    for lease in leases:
        assert isinstance(lease, Lease)
        lease.release()


TROUBLES = [
    late_releases,
    hung_stores,
    slow_callbacks,
    broken_log,
    a_store_that_comes_and_goes,
    thousands_at_once,
]


@pytest.mark.timeout(3600 if CHAOS else 120)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_no_healthy_lease_is_lost(
    valkey: ValkeyServer,
    trouble: Callable[[ValkeyServer, ExitStack], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever becomes of the others."""
    logging.getLogger("singleflight").setLevel(logging.CRITICAL)
    try:
        for _ in range(ROUNDS):
            with healthy(valkey), ExitStack() as stack:
                trouble(valkey, stack)
    finally:
        logging.getLogger("singleflight").setLevel(logging.NOTSET)
    with capsys.disabled():
        sys.stdout.write(f"\n{trouble.__name__}: {ROUNDS} rounds, none of 5 healthy leases lost in any\n")
