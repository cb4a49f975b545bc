"""Who waits for a lease gives up when it said it would: not earlier, and hardly later."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from singleflight import Conflict, aio, lease, try_lease
from singleflight.cli.run import waiting
from singleflight.cli.run.signals import Signals
from singleflight.lease import Lease, monotonic
from singleflight.leases.waiting import leases_of, request_for

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES = 5
"""Of so many times the shortest counts: this machine may be busy, but it is not always."""

LATE = 0.02
"""Seconds beyond the wait, and beyond what an attempt without one takes on this machine."""


@pytest.fixture(params=["valkey", "redis7", "sqlite", "memory"])
def url(request: pytest.FixtureRequest) -> str:
    """A store in which those who wait are told, and two in which they look."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return str(request.getfixturevalue(request.param).url)


def plainly(url: str, name: str, wait: float) -> None:
    """Wait in a thread."""
    with pytest.raises(Conflict), lease(url, name, wait=wait):
        pass


def awaiting(url: str, name: str, wait: float) -> None:
    """Wait in an event loop."""

    async def attempt() -> None:
        async with aio.lease(url, name, wait=wait):
            pass

    with pytest.raises(Conflict):
        asyncio.run(attempt())


def on_the_command_line(url: str, name: str, wait: float) -> None:
    """Wait as `singleflight run --wait` does."""
    request = request_for(name, ttl=30, window=0, run_id=None, prefix="singleflight")
    with Signals() as signals, pytest.raises(Conflict):
        waiting.obtain(leases_of(url), request, signals, wait=wait, alone=True)


@pytest.mark.parametrize("wait", [0.05, 0.1, 0.35])
@pytest.mark.parametrize("attempt", [plainly, awaiting, on_the_command_line])
def test_a_wait_ends_when_it_was_told_to(
    url: str, attempt: Callable[[str, str, float], None], wait: float
) -> None:
    """A tenth of a second is a tenth of a second, whatever grain the store's own waiting has."""
    name = uuid.uuid4().hex
    held = try_lease(url, name)
    assert isinstance(held, Lease)
    with held:
        at_once = [_took(attempt, url, name, 0.0) for _ in range(TRIES)]
        took = [_took(attempt, url, name, wait) for _ in range(TRIES)]

    assert min(took) >= wait - 0.001  # they are rounded
    assert min(took) <= wait + min(at_once) + LATE, f"asked for {wait}, took {took}, without a wait {at_once}"


def _took(attempt: Callable[[str, str, float], None], url: str, name: str, wait: float) -> float:
    began = monotonic()
    attempt(url, name, wait)
    return round(monotonic() - began, 3)
