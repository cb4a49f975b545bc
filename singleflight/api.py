"""Leases for plain code: `try_lease`, `lease`, `current_lease`.

Importing this is cheap: what claims and renews is loaded by the first lease, so that a process which only
declares or publishes tasks does not pay for it.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from datetime import timedelta

    from singleflight.lease import Busy, Lease
    from singleflight.status import Status
    from singleflight.stores.base import Store

PREFIX = "singleflight"

_held: ContextVar[tuple[Lease, ...]] = ContextVar("singleflight_leases", default=())
"""The leases of the running task and of the blocks that it is in, the innermost last."""


def current_lease() -> Lease | None:
    """Return the lease that the running task or ``with`` block holds, the innermost one; None without any."""
    held = _held.get()
    return held[-1] if held else None


def run_around(key: str) -> str:
    """Return the run of the task or block around here that holds a key; empty if none does."""
    return next((lease.run_id for lease in _held.get() if lease.key == key), "")


@contextmanager
def holding(lease: Lease) -> Generator[None]:
    """Make a lease the `current_lease` of a block."""
    mark = _held.set((*_held.get(), lease))
    try:
        yield
    finally:
        _held.reset(mark)


def try_lease(
    store: Store | str,
    name: str,
    *,
    ttl: float | timedelta = 30.0,
    window: float | timedelta = 0.0,
    run_id: str | None = None,
    prefix: str = PREFIX,
    on_lost: Callable[[Lease], None] | None = None,
) -> Lease | Busy:
    """Ask once for the lease called ``name``; give it back with `Lease.release`.

    Args:
        store: a store, or its URL.
        name: what must not run twice.
        ttl: seconds that the lease outlives its last renewal, built in 30.
        window: seconds after a start in which no other run may start, built in 0.
        run_id: names the run: the same run is granted once, for as long as the store remembers. Built in:
            a new one each time.
        prefix: what all keys start with, built in ``singleflight``.
        on_lost: called in a thread of the keeper when the lease cannot be trusted any more.

    Raises:
        ConfigurationError: for a wrong value.
        StoreUnavailable: if the store gives no answer.
    """
    from singleflight.leases import waiting  # noqa: PLC0415 - see above

    request = waiting.request_for(name, ttl=ttl, window=window, run_id=run_id, prefix=prefix)
    return waiting.leases_of(store).claim(request, on_lost=on_lost, anyway=True)


@contextmanager
def lease(
    store: Store | str,
    name: str,
    *,
    ttl: float | timedelta = 30.0,
    window: float | timedelta = 0.0,
    run_id: str | None = None,
    wait: float | timedelta | None = 0.0,
    prefix: str = PREFIX,
) -> Generator[Lease]:
    """Hold the lease called ``name`` for a block, waiting for it if told to.

    Args:
        store: see `try_lease`, as for ``name``, ``ttl``, ``window``, ``run_id`` and ``prefix``.
        wait: seconds to wait for the lease, 0 for one try (built in), None for ever. A leader is
            ``wait=None`` plus `Lease.check` before each thing that only a leader may do.

    Raises:
        Conflict: if another run still has it when the wait is over, or this run has ended already.
        StoreUnavailable: if the store gives no answer in that time.
        ConfigurationError: for a wrong value.
    """
    from singleflight.leases import waiting  # noqa: PLC0415 - see above

    deadline = waiting.deadline_after(wait)
    request = waiting.request_for(name, ttl=ttl, window=window, run_id=run_id, prefix=prefix)
    block = _Block()
    taken = waiting.wait_for(waiting.leases_of(store), request, deadline, weakref.ref(block))
    with taken, holding(taken):
        yield taken


def peek(store: Store | str, name: str, *, prefix: str = PREFIX) -> Status:
    """Look whether somebody holds the lease called ``name``, without asking for it.

    Args:
        store: see `try_lease`, as for ``name`` and ``prefix``.

    Returns:
        A `Status`, true if a run holds the lease.

    Raises:
        ConfigurationError: for a wrong value.
        StoreUnavailable: if the store gives no answer.
    """
    from singleflight.keys import lease_key  # noqa: PLC0415 - see above
    from singleflight.leases import waiting  # noqa: PLC0415
    from singleflight.stores.view import View  # noqa: PLC0415

    key = lease_key(prefix, name)
    return View(waiting.leases_of(store).store.peek(key)).status(key)


@atexit.register
def _stop() -> None:
    """Give the keeper a moment to give back what is late; registered here: at a lease it may be too late."""
    awaiting, keeper = map(sys.modules.get, ("singleflight.leases.awaiting", "singleflight.leases.keeper"))
    if awaiting is not None:
        awaiting.stop()
    if keeper is not None:
        keeper.process_keeper().stop()


class _Block:
    """Lives as long as a ``with lease(...)`` block: without it, the keeper gives the lease back."""
