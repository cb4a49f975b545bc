"""Claim, keep, give back: leases for the integrations and for plain code."""

from __future__ import annotations

import random
import time
import uuid
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from singleflight.errors import ConfigurationError, Conflict, StoreUnavailable
from singleflight.events import Event, Kind, Notify
from singleflight.keeper import process_keeper
from singleflight.keys import lease_key, short_key
from singleflight.lease import Busy, Holder, Lease, Outcome, monotonic
from singleflight.policy import Singleton
from singleflight.stores import open_store
from singleflight.stores.base import Claim, Release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from singleflight.stores.base import Store

PREFIX = "singleflight"

REST = 5.0
"""Seconds for which a store that has failed is not asked again by those who must not be slow."""

SHORTEST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks of somebody who waits for a lease."""

_current: ContextVar[Lease | None] = ContextVar("singleflight_lease", default=None)


def current_lease() -> Lease | None:
    """Return the lease that the running task or ``with`` block holds, or None."""
    return _current.get()


@contextmanager
def holding(lease: Lease | None) -> Iterator[None]:
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
        holder = Holder(request.task)
        sent = monotonic()
        try:
            answer = self.store.claim(_claim(request, holder))
        except StoreUnavailable as error:
            self._rests_until = monotonic() + REST
            self.notify(_event(Kind.STORE_ERROR, request, reason=str(error)))
            raise
        except BaseException:
            # A time limit struck between request and reply: nobody else would release what was granted.
            self.disown(request, Outcome.REQUEUED, began=False)
            raise
        self._rests_until = 0.0
        if isinstance(answer, Busy):
            return answer
        lease = Lease(
            process_keeper(),
            answer,
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
        process_keeper().hold(lease, self.store, self.notify, on_lost=on_lost, owner=owner)
        self.notify(_event(Kind.TOOK_OVER if answer.took_over else Kind.GRANTED, request, fence=answer.fence))
        return lease

    def disown(self, request: Request, outcome: Outcome, *, grace: float = 0, began: bool = True) -> None:
        """Have the keeper release a lease for a process that cannot do it itself; returns at once."""
        release = Release(
            key=request.key,
            run_id=request.run_id,
            attempt=request.attempt,
            token=request.token,
            outcome=outcome,
            grace_ms=round(grace * 1000),
            began=began,
        )
        process_keeper().send(release, self.store, patience=request.ttl)

    def tell(self, kind: Kind, request: Request, busy: Busy, *, delay: float | None = None) -> None:
        """Report what became of a refused claim."""
        age = None if busy.since is None else max(0.0, time.time() - busy.since)
        self.notify(_event(kind, request, reason=str(busy.reason), holder=busy.holder, age=age, delay=delay))


def new_token() -> str:
    """Return a random token for one delivery, made before its first request to the store."""
    return uuid.uuid4().hex


def try_lease(
    store: Store | str,
    name: str,
    *,
    ttl: float = 30.0,
    window: float = 0.0,
    run_id: str | None = None,
    prefix: str = PREFIX,
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

    Raises:
        ConfigurationError: for a wrong value.
        StoreUnavailable: if the store gives no answer.
    """
    options = Singleton(ttl=ttl, window=window)  # refuses wrong values by name
    del options
    request = Request(
        key=lease_key(prefix, name),
        task=name,
        run_id=run_id or str(uuid.uuid4()),
        token=new_token(),
        ttl=float(ttl),
        window=float(window),
    )
    return _leases(store).claim(request, patient=True)


@contextmanager
def lease(
    store: Store | str,
    name: str,
    *,
    ttl: float = 30.0,
    window: float = 0.0,
    run_id: str | None = None,
    wait: float | None = 0.0,
    prefix: str = PREFIX,
) -> Iterator[Lease]:
    """Hold the lease called ``name`` for a block, waiting for it if told to.

    Args:
        store: see `try_lease`, as for ``name``, ``ttl``, ``window``, ``run_id`` and ``prefix``.
        wait: seconds to wait for the lease, 0 for one try (built in), None for ever. A leader is
            ``wait=None`` plus `Lease.check` before each thing that only a leader may do.

    Raises:
        Conflict: if another run still has it when the wait is over.
        StoreUnavailable: if the store gives no answer in that time.
        ConfigurationError: for a wrong value.
    """
    run_id = run_id or str(uuid.uuid4())
    deadline = None if wait is None else monotonic() + wait
    pause = SHORTEST_POLL
    while True:
        try:
            answer = try_lease(store, name, ttl=ttl, window=window, run_id=run_id, prefix=prefix)
        except StoreUnavailable:
            if deadline is not None and monotonic() + pause > deadline:
                raise
        else:
            if isinstance(answer, Lease):
                break
            if deadline is not None and monotonic() + pause > deadline:
                raise Conflict(f"{name} is taken ({answer}); wait longer, or try again later")
        time.sleep(pause * (1 - random.random() / 4))  # noqa: S311 - spreads waiters, guards nothing
        pause = min(LONGEST_POLL, pause * 1.5)
    with answer, holding(answer):
        yield answer


class _Opened:
    """Stores opened by URL in this process, so that a loop of `try_lease` does not connect each time."""

    by_url: dict[str, Leases] = {}


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


def _event(
    kind: Kind,
    request: Request,
    *,
    reason: str = "",
    fence: int = 0,
    holder: Holder | None = None,
    age: float | None = None,
    delay: float | None = None,
) -> Event:
    return Event(
        kind=kind,
        task=request.task,
        key=short_key(request.key),
        run_id=request.run_id,
        token=request.token,
        fence=fence,
        reason=reason,
        holder=holder,
        age=age,
        delay=delay,
    )
