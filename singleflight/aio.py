"""The async face of leases: the same as in plain code, and no event loop that waits for a store.

Requests to a store run in a few threads of our own, never in the loop's default executor, which may be full
of other people's work; renewals are the keeper's, as ever. A request cannot be called back, so whoever is
cancelled while one is under way leaves a note to give back what it brings.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from singleflight import api
from singleflight.api import PREFIX, holding
from singleflight.errors import LeaseLost, StoreUnavailable
from singleflight.lease import Busy, Lease, Outcome
from singleflight.leases import waiting
from singleflight.leases.awaiting import have_done, in_thread, lane_of
from singleflight.leases.pacing import Wait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from singleflight.lease import Holder
    from singleflight.leases.claiming import Leases
    from singleflight.status import Status
    from singleflight.stores.base import Store


class AsyncLease:
    """A `Lease` whose methods that talk to the store are awaited; what is local stays a plain call."""

    __slots__ = ("_lane", "plain")

    def __init__(self, lease: Lease, lane: Hashable = None) -> None:
        """Made by `try_lease` and `lease`; ``plain`` is the lease that it is the face of."""
        self.plain = lease
        self._lane = lane

    @property
    def key(self) -> str:
        """What must not run twice, as the store knows it."""
        return self.plain.key

    @property
    def run_id(self) -> str:
        """The run that holds it."""
        return self.plain.run_id

    @property
    def fence(self) -> int:
        """A number that grows with every grant of the key."""
        return self.plain.fence

    @property
    def holder(self) -> Holder:
        """Who holds it, for people."""
        return self.plain.holder

    @property
    def held(self) -> bool:
        """See `Lease.held`."""
        return self.plain.held

    @property
    def expires_in(self) -> float:
        """See `Lease.expires_in`."""
        return self.plain.expires_in

    def check(self) -> None:
        """See `Lease.check`; local, nothing to await."""
        self.plain.check()

    async def ensure(self, seconds: float) -> None:
        """See `Lease.ensure`."""
        await in_thread(lambda: self.plain.ensure(seconds), lane=self._lane)

    async def release(
        self, outcome: Outcome = Outcome.FINISHED, *, grace: float = 0, again: float = 0
    ) -> bool:
        """See `Lease.release`; goes on also if the one who awaits it is cancelled."""
        return await in_thread(lambda: self.plain.release(outcome, grace=grace, again=again), lane=self._lane)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release(Outcome.FINISHED if kind is None else Outcome.FAILED)

    def __repr__(self) -> str:
        return f"<Async{repr(self.plain)[1:]}"


async def try_lease(
    store: Store | str,
    name: str,
    *,
    ttl: float | timedelta = 30.0,
    window: float | timedelta = 0.0,
    run_id: str | None = None,
    prefix: str = PREFIX,
    on_lost: Callable[[Lease], None] | None = None,
) -> AsyncLease | Busy:
    """Ask once for the lease called ``name``; arguments and errors as in `singleflight.try_lease`.

    If the caller is cancelled, nothing stays held: what the store may have granted is given back.
    """
    answer = await in_thread(
        lambda: api.try_lease(
            store, name, ttl=ttl, window=window, run_id=run_id, prefix=prefix, on_lost=on_lost
        ),
        lane=lane_of(store),
        undo=_give_back,
    )
    return AsyncLease(answer, lane_of(store)) if isinstance(answer, Lease) else answer


async def peek(store: Store | str, name: str, *, prefix: str = PREFIX) -> Status:
    """Look whether somebody holds a lease, without asking for it; see `singleflight.peek`."""
    return await in_thread(lambda: api.peek(store, name, prefix=prefix), lane=lane_of(store))


@asynccontextmanager
async def lease(
    store: Store | str,
    name: str,
    *,
    ttl: float | timedelta = 30.0,
    window: float | timedelta = 0.0,
    run_id: str | None = None,
    wait: float | timedelta | None = 0.0,
    prefix: str = PREFIX,
    cancel_on_lost: bool = False,
) -> AsyncIterator[AsyncLease]:
    """Hold the lease called ``name`` for a block; arguments and errors as in `singleflight.lease`.

    Args:
        store: see `singleflight.lease`, as for the others.
        cancel_on_lost: whether the block is cancelled when the lease cannot be trusted any more; it then ends
            with `LeaseLost`. Built in: no, the block asks `AsyncLease.check` itself.

    Raises:
        LeaseLost: if the lease was lost and ``cancel_on_lost`` is set.
    """
    strike = _Strike() if cancel_on_lost else None
    deadline = waiting.deadline_after(wait)
    request = waiting.request_for(name, ttl=ttl, window=window, run_id=run_id, prefix=prefix)
    lane = lane_of(store)
    leases = await in_thread(lambda: waiting.leases_of(store), lane=lane)
    waiter = Wait(leases, request, deadline)
    try:
        while not isinstance(taken := await _ask(leases, waiter, strike, lane), Lease):
            pause = waiter.after(taken)
            await asyncio.sleep(pause.sleep)  # listening would take a thread, and they are few
    except BaseException:
        have_done(lane, waiter.give_up)
        raise
    async with AsyncLease(taken, lane) as answer:
        with strike or contextlib.nullcontext(), holding(taken):
            yield answer


async def _ask(
    leases: Leases, waiter: Wait, on_lost: Callable[[Lease], None] | None, lane: Hashable
) -> Lease | Busy | StoreUnavailable:
    request = waiter.next_request()
    try:
        return await in_thread(
            lambda: leases.claim(request, on_lost=on_lost, anyway=True),
            lane=lane,
            undo=lambda late: _abandon(late, waiter),
        )
    except StoreUnavailable as error:
        return error


def _abandon(late: Lease | Busy, waiter: Wait) -> None:
    """Give back what comes for one who has been cancelled meanwhile, and its place too."""
    _give_back(late)
    waiter.give_up()


class _Strike:
    """Cancels the task that made it when a lease is lost, and tells that from any other cancellation."""

    at_once = True

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._inside = self._struck = False

    def __call__(self, lost: Lease) -> None:
        """Strike; called in a thread of the keeper."""
        del lost
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to cancel
            self._loop.call_soon_threadsafe(self._cancel)

    def __enter__(self) -> None:
        self._inside = True
        if self._struck:
            raise LeaseLost("the lease was lost before its block began")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        if self._struck and self._task is not None:
            # As in asyncio.timeout: if somebody else cancelled as well, that goes first.
            others = self._task.uncancel()
            if kind is None or (issubclass(kind, asyncio.CancelledError) and not others):
                raise LeaseLost("the lease was lost, so the block was cancelled") from error

    def _cancel(self) -> None:
        self._struck = True
        if self._inside and self._task is not None:
            self._task.cancel("the lease was lost")


def _give_back(answer: Lease | Busy) -> None:
    """Give back a lease whose block will never begin."""
    if isinstance(answer, Lease):
        answer.began = False
        answer.release(Outcome.REQUEUED)
