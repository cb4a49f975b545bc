"""Claim, keep, give back: leases for the integrations and for plain code."""

from __future__ import annotations

import math
import random
import time
import uuid
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from singleflight.errors import ConfigurationError, Conflict, SingleflightError, StoreUnavailable
from singleflight.events import Kind, Notify, about
from singleflight.keeper import process_keeper
from singleflight.keys import lease_key
from singleflight.lease import Busy, Holder, Lease, Outcome, Reason, monotonic
from singleflight.parting import release_of
from singleflight.policy import Singleton, resolve
from singleflight.stores import open_store
from singleflight.stores.base import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from singleflight.keeper import Keeper
    from singleflight.lease import Granted
    from singleflight.stores.base import Store

PREFIX = "singleflight"

REST = 5.0
"""Seconds for which a store that has failed is not asked again by those who must not be slow."""

RETRACT = 60.0
"""Seconds for which a claim that got no answer is being taken back: an outage must not pile them up."""

SHORTEST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks of somebody who waits for a lease."""

_current: ContextVar[Lease | None] = ContextVar("singleflight_lease", default=None)


def current_lease() -> Lease | None:
    """Return the lease that the running task or ``with`` block holds, or None."""
    return _current.get()


@contextmanager
def holding(lease: Lease | None) -> Generator[None]:
    """Make a lease the `current_lease` of a block."""
    mark = _current.set(lease)
    try:
        yield
    finally:
        _current.reset(mark)


@dataclass(frozen=True, slots=True)
class Request:
    """What a delivery asks for, before its token is minted; durations in seconds."""

    key: str
    task: str
    run_id: str
    token: str
    attempt: int = 0
    ttl: float = 30.0
    window: float = 0.0
    after: str | None = None
    wait: float = 0.0
    first: bool = False
    max_hold: float | None = None


class Leases:
    """Claims leases in one store and hands them to this process's keeper."""

    def __init__(self, store: Store, notify: Notify | None = None) -> None:
        """Use a store and, besides the log, its listeners."""
        self.store = store
        self.notify = notify or Notify()
        self._rests_until = 0.0

    def claim(
        self,
        request: Request,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        owner: Callable[[], object] | None = None,
        patient: bool = False,
    ) -> Lease | Busy:
        """Ask the store once: a `Lease` that is being renewed, or why not.

        For `REST` seconds after a failure the store is not asked at all, unless the caller is ``patient``.

        Raises:
            StoreUnavailable: if the store does not answer, or rests after a failure.
            ConfigurationError: if it never will.
        """
        if not patient and monotonic() < self._rests_until:
            raise StoreUnavailable(f"the store failed less than {REST:.0f} s ago and is not asked again yet")
        keeper, holder = process_keeper(), Holder(request.task)
        sent = keeper.clock()
        try:
            answer = self.store.claim(_claim(request, holder))
            self._rests_until = 0.0
            if isinstance(answer, Busy):
                return answer
            lease = _lease(keeper, answer, request, holder, sent)
            keeper.hold(lease, self.store, self.notify, on_lost=on_lost, owner=owner)
            kind = Kind.TOOK_OVER if answer.took_over else Kind.GRANTED
            self.notify(about(request, kind, fence=answer.fence))
        except ConfigurationError:
            raise
        except StoreUnavailable as error:
            self._retract(request)
            if monotonic() >= self._rests_until:  # an outage is not reported more often
                self.notify(about(request, Kind.STORE_ERROR, str(error)))
            self._rests_until = monotonic() + REST
            raise
        except BaseException:
            self._retract(request)
            raise
        return lease

    def disown(self, request: Request, outcome: Outcome, *, grace: float = 0, began: bool = True) -> None:
        """Have the keeper release a lease for a process that cannot do it itself; returns at once."""
        release = release_of(request, outcome, grace=grace, began=began)
        process_keeper().send(release, self.store, patience=request.ttl)

    def _retract(self, request: Request) -> None:
        """Take back a claim whose answer nobody heard: it may have been granted all the same."""
        release = release_of(request, Outcome.REQUEUED, began=request.attempt > 0)
        process_keeper().send(release, self.store, patience=min(request.ttl, RETRACT))

    def tell(self, kind: Kind, request: Request, busy: Busy, *, delay: float | None = None) -> None:
        """Report what became of a refused claim."""
        age = None if busy.since is None else max(0.0, time.time() - busy.since)
        self.notify(about(request, kind, str(busy.reason), holder=busy.holder, age=age, delay=delay))


def new_token() -> str:
    """Return a random token for one delivery, made before its first request to the store."""
    return uuid.uuid4().hex


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
    request = _request(name, ttl, window, run_id, prefix)
    return _leases(store).claim(request, on_lost=on_lost, patient=True)


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
    deadline = monotonic() + _patience(wait)
    request = _request(name, ttl, window, run_id, prefix)
    block = _Block()
    taken = _wait_for(_leases(store), request, deadline, weakref.ref(block))
    with taken, holding(taken):
        yield taken


class _Block:
    """Lives as long as a ``with lease(...)`` block: without it, the keeper gives the lease back."""


def _wait_for(leases: Leases, request: Request, deadline: float, owner: Callable[[], object]) -> Lease:
    """Claim until it is granted; every claim has its own token, because an earlier one may be taken back."""
    pause = SHORTEST_POLL
    while True:
        over: SingleflightError
        try:
            answer = leases.claim(replace(request, token=new_token()), owner=owner, patient=True)
        except StoreUnavailable as error:
            over = error
        else:
            if isinstance(answer, Lease):
                return answer
            over = Conflict(f"{request.task} is taken ({answer}); wait longer, or try again later")
            if answer.reason is Reason.FINISHED:
                raise over
        left = deadline - monotonic()
        if left <= 0:
            raise over
        time.sleep(min(left, pause * (1 - random.random() / 4)))  # noqa: S311 - spreads waiters, guards nothing
        pause = min(LONGEST_POLL, pause * 1.5)


def _request(
    name: str, ttl: float | timedelta, window: float | timedelta, run_id: str | None, prefix: str
) -> Request:
    policy = resolve(Singleton(ttl=ttl, window=window))  # refuses wrong values by name
    return Request(
        key=lease_key(prefix, name),
        task=name,
        run_id=run_id or str(uuid.uuid4()),
        token=new_token(),
        ttl=policy.ttl,
        window=policy.window,
    )


def _patience(wait: object) -> float:
    if wait is None:
        return math.inf
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ConfigurationError(
            f"wait={wait!r} is not a duration; give seconds, 0 for one try, or None to wait for ever"
        )
    return seconds


class _Opened:
    """Stores opened by URL in this process, so that a loop of `try_lease` does not connect each time."""

    by_url: ClassVar[dict[str, Leases]] = {}


def _leases(store: Store | str) -> Leases:
    if not isinstance(store, str):
        return Leases(store)
    if "://" not in store:
        raise ConfigurationError(f"{store!r} is not a store URL; write one such as redis://host:6379/0")
    if store not in _Opened.by_url:
        _Opened.by_url[store] = Leases(open_store(store))
    return _Opened.by_url[store]


def _claim(request: Request, holder: Holder) -> Claim:
    return Claim(
        key=request.key,
        run_id=request.run_id,
        attempt=request.attempt,
        token=request.token,
        ttl_ms=round(request.ttl * 1000),
        window_ms=round(request.window * 1000),
        holder=holder.encode(),
        after=request.after,
        wait_ms=round(request.wait * 1000),
        first=request.first,
    )


def _lease(keeper: Keeper, granted: Granted, request: Request, holder: Holder, sent: float) -> Lease:
    return Lease(
        keeper,
        granted,
        key=request.key,
        task=request.task,
        run_id=request.run_id,
        attempt=request.attempt,
        token=request.token,
        ttl=request.ttl,
        holder=holder,
        sent=sent,
        max_hold=request.max_hold,
    )
