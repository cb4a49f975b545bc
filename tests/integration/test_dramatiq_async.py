"""Async actors: the lease lasts as long as the coroutine, also after Dramatiq has stopped waiting for it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO, CurrentMessage, Retries, TimeLimit

from singleflight import Singleton, current_lease
from singleflight.dramatiq import install
from tests.support.bodylog import BodyLog, overlaps
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    """Return a stub broker with a worker of four threads."""
    middleware: list[Any] = [TimeLimit(interval=100), Retries(max_retries=0), AsyncIO(), CurrentMessage()]
    broker = StubBroker(middleware=middleware)
    install(broker)
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=4)
    broker.emit_after("process_boot")  # the command line does this; it starts the time limit's thread
    worker.start()
    yield broker
    worker.stop(timeout=5_000)


def test_an_async_actor_runs_under_its_lease(broker: StubBroker, tmp_path: Path) -> None:
    """The coroutine sees its lease, and deferred ones run one after the other."""
    log = BodyLog(tmp_path / "bodies.log")

    async def body() -> None:
        lease = current_lease()
        assert lease is not None
        with log.body("async", CurrentMessage.get_current_message().message_id, fence=lease.fence):
            await asyncio.sleep(0.1)

    actor = dramatiq.actor(broker=broker, actor_name="a", singleton=Singleton(on_conflict="defer"))(body)
    for _ in range(3):
        actor.send()
    broker.join("default", timeout=30_000)

    runs = log.runs()
    assert len(runs) == 3
    assert not overlaps(runs)
    assert len({run.fence for run in runs}) == 3


def test_a_coroutine_that_outlives_its_interrupt_keeps_its_lease(broker: StubBroker, tmp_path: Path) -> None:
    """Dramatiq waits a second for a cancelled coroutine; the next run waits until it is really over."""
    log = BodyLog(tmp_path / "bodies.log")

    async def body(stubborn: bool) -> None:
        with log.body("async", str(stubborn)) as working:
            try:
                await asyncio.sleep(60 if stubborn else 0)
            finally:
                end = time.monotonic() + (3 if stubborn else 0)
                while time.monotonic() < end:
                    await asyncio.sleep(0.02)
                    working.alive()

    singleton = Singleton(by=(), on_conflict="defer")
    actor = dramatiq.actor(broker=broker, actor_name="a", singleton=singleton, time_limit=300)(body)
    actor.send(True)
    until(log.runs, what="the first run")
    actor.send(False)
    broker.join("default", fail_fast=False, timeout=30_000)

    runs = log.runs()
    assert [run.run for run in runs] == ["True", "False"]
    assert runs[0].how == "CancelledError"
    assert not overlaps(runs)
