"""Requests to stores that an event loop awaits; no store waits for another, and none holds up the exit."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from singleflight.leases.lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from singleflight.stores.base import Store

THREADS = 8
"""How many requests to one store may be under way at once; they are short, and more wait for those."""

MOST = 64
"""How many requests to all stores may be."""

STOP_TIMEOUT = 0.5
"""Seconds that requests which are under way get when the process ends."""

Result = TypeVar("Result")

_threads = Lanes("singleflight-aio", abreast=THREADS, most=MOST)
"""The one piece of global state: this process's threads, which start with the first request."""


def stop() -> None:
    """Give what is under way a moment when the process ends; a store that hangs does not hold it up."""
    _threads.stop(STOP_TIMEOUT)


def have_done(lane: Hashable, work: Callable[[], object]) -> None:
    """Have something done in a thread, which nobody waits for."""
    _threads.put(lane, work)


def lane_of(store: Store | str) -> Hashable:
    """Return what tells one store from another."""
    return store if isinstance(store, str) else id(store)


async def in_thread(
    work: Callable[[], Result], *, lane: Hashable, undo: Callable[[Result], object] | None = None
) -> Result:
    """Run ``work`` in a thread, behind other work in its lane.

    If nobody waits for its result any more, hand that to ``undo``; work that can be undone is not even begun
    then. Other work, a release above all, is done in any case.
    """
    future: Future[Result] = Future()
    _threads.put(lane, lambda: _fill(future, work))
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except BaseException:
        # In a callback, so that a second cancellation cannot skip it. If it was `work` that failed, there is
        # nothing to undo.
        if undo is not None and not future.cancel():
            future.add_done_callback(lambda done: _undo(done, lane, undo))
        raise


def _fill(future: Future[Result], work: Callable[[], Result]) -> None:
    """Do the work for whoever waits for it."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - raised to the one who waits
        future.set_exception(error)
    else:
        future.set_result(result)


def _undo(done: Future[Result], lane: Hashable, undo: Callable[[Result], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        # This may be the loop's own thread, which must not wait for a store.
        _threads.put(lane, lambda: undo(done.result()))
