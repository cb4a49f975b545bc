"""The keeper's promises on a real server behind a line that fails: no healthy lease is lost.

Each trouble once by default, and twenty times with SINGLEFLIGHT_CHAOS=1.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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

    from singleflight.stores.base import Store
    from tests.support.servers import ValkeyServer

CHAOS = bool(os.environ.get("SINGLEFLIGHT_CHAOS"))
ROUNDS = 20 if CHAOS else 1
TTL = 5.0
"""Seconds of a healthy lease: few, or a round would be long; a crowded machine needs some to itself."""


@contextmanager
def healthy(server: ValkeyServer, store: Store | None = None) -> Iterator[None]:
    """Hold leases, on a line of their own unless one is given; afterwards, none may have been lost."""
    lost: list[float] = []
    line, began = store or open_store(server.url), time.monotonic()
    leases = [
        try_lease(line, uuid4().hex, ttl=TTL, on_lost=lambda _: lost.append(time.monotonic() - began))
        for _ in range(5)
    ]
    assert all(isinstance(lease, Lease) for lease in leases)
    yield
    assert not lost
    assert all(isinstance(lease, Lease) and lease.held and lease.release() for lease in leases)
    if store is None:
        line.close()


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


TROUBLES = [
    late_releases,
    hung_stores,
    slow_callbacks,
    broken_log,
    a_store_that_comes_and_goes,
]


@pytest.fixture
def quiet() -> Iterator[None]:
    """Leave the log alone: it would get a line for each loss."""
    logging.getLogger("singleflight").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("singleflight").setLevel(logging.NOTSET)


def say(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Print the verdict, whatever pytest is told to show."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(3600 if CHAOS else 120)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_no_healthy_lease_is_lost(
    valkey: ValkeyServer,
    trouble: Callable[[ValkeyServer, ExitStack], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever becomes of the others."""
    for _ in range(ROUNDS):
        with healthy(valkey), ExitStack() as stack:
            trouble(valkey, stack)
    say(capsys, f"{trouble.__name__}: {ROUNDS} rounds, none of 5 healthy leases lost in any")


@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(3600 if CHAOS else 120)
def test_no_lease_is_lost_when_thousands_fall_due_at_once(
    valkey: ValkeyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither one of them, nor short ones of the same store, nor those of another."""
    count, lost = 60_000 if CHAOS else 3_000, list[Lease]()
    store, keeper = open_store(valkey.url), process_keeper()
    # Longer than it takes to claim them all and to renew each once.
    with ThreadPoolExecutor(8) as threads:
        keys = (uuid4().hex for _ in range(count))
        leases = list(threads.map(lambda key: try_lease(store, key, ttl=300, on_lost=lost.append), keys))
        many = [keeper._books[lease.token] for lease in leases if isinstance(lease, Lease)]
        assert len(many) == count
        took: list[float] = []
        for _ in range(ROUNDS):
            with healthy(valkey), healthy(valkey, store=store):
                due = keeper.clock()
                for kept in many:
                    kept.due = due
                keeper._timer.ring(due)
                until(lambda: all(kept.confirmed >= due for kept in many), 120, "all renewals", every=0.1)  # noqa: B023
                took.append(keeper.clock() - due)
            assert not lost
        assert all(threads.map(lambda kept: kept.lease.release(), many))
    store.close()
    spread = f"{min(took):.1f} to {max(took):.1f} s"
    say(
        capsys,
        f"{count} leases due at once: {ROUNDS} rounds, all renewed in {spread}, none lost, nor any other",
    )
