"""How plain code asks for a lease: what it gave becomes a request, and it waits if it must.

Where the store tells waiters that their time has come, they take turns by the waiting slot.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from singleflight.errors import ConfigurationError, Conflict, SingleflightError, StoreUnavailable
from singleflight.keys import lease_key
from singleflight.lease import Busy, Lease, Reason, monotonic
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.policy import Singleton, resolve
from singleflight.stores import as_store, is_store
from singleflight.stores.base import Waits
from singleflight.stores.optional import Waking

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.policy import Policy
    from singleflight.stores.base import Store

SHORTEST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks of somebody who waits for a lease and is not told when it is free."""

LONGEST_WAIT = 1.0
"""Seconds after which somebody who is told looks all the same: what should have told it may have died."""

SLOT = 2.0
"""Seconds for which a waiter that has died keeps the waiting slot."""


def wait_for(leases: Leases, request: Request, deadline: float, owner: Callable[[], object]) -> Lease:
    """Claim until it is granted; every claim has its own token, because an earlier one may be taken back.

    Raises:
        Conflict: if another run still has the lease at the deadline, or this run has ended already.
        StoreUnavailable: if the store gives no answer until then.
    """
    request = in_line(leases, request, deadline)
    try:
        return _until_granted(leases, request, deadline, owner)
    except BaseException:
        leave_line(leases, request)
        raise


def in_line(leases: Leases, request: Request, deadline: float) -> Request:
    """Return the request of one who takes turns with others, if there is time and the store has a line."""
    if isinstance(leases.store, Waking) and deadline > monotonic():
        return request._replace(wait=SLOT, waits=Waits.LISTENING)
    return request


def leave_line(leases: Leases, request: Request) -> None:
    """Let the others pass, for one who gives up."""
    if request.waits is Waits.LISTENING:
        # A store that has just failed is not waited for: the place lapses within `SLOT` seconds.
        with suppress(SingleflightError):
            leases.breaker.ask(lambda: leases.store.unqueue(request.key, request.run_id))


def time_left(answer: Busy | StoreUnavailable, request: Request, deadline: float) -> float:
    """Return for how many seconds one may wait after this answer.

    Raises:
        Conflict, StoreUnavailable: what the answer comes to, if none are left or waiting is no use.
    """
    left = deadline - monotonic()
    if isinstance(answer, StoreUnavailable):
        if left <= 0:
            raise answer
    elif left <= 0 or answer.reason is Reason.FINISHED:
        raise Conflict(f"{request.task} is taken ({answer}); wait longer, or try again later", answer)
    return left


def spread(pause: float) -> float:
    """Return a pause, or up to a quarter less: those who wait must not all ask at one moment."""
    return pause * (1 - random.random() / 4)  # noqa: S311 - guards nothing


def _until_granted(leases: Leases, request: Request, deadline: float, owner: Callable[[], object]) -> Lease:
    pause = SHORTEST_POLL
    while True:
        answer: Lease | Busy | StoreUnavailable
        try:
            answer = leases.claim(request._replace(token=new_token()), owner=owner, patient=True)
        except StoreUnavailable as error:
            answer = error
        if isinstance(answer, Lease):
            return answer
        left = time_left(answer, request, deadline)
        if not (isinstance(answer, Busy) and _await_turn(leases.store, request, answer, left)):
            time.sleep(min(left, spread(pause)))
            pause = min(LONGEST_POLL, pause * 1.5)


def _await_turn(store: Store, request: Request, busy: Busy, left: float) -> bool:
    """Wait until it may be worth asking again; False if the store does not help to wait."""
    if not (request.waits is Waits.LISTENING and isinstance(store, Waking)):
        return False
    try:
        store.await_turn(request.key, request.run_id, seconds=min(left, LONGEST_WAIT, busy.retry_after))
    except SingleflightError:
        return False
    return True


def request_for(
    name: str, *, ttl: float | timedelta, window: float | timedelta, run_id: str | None, prefix: str
) -> Request:
    """Return what to ask the store for the lease called ``name``; a wrong value is a `ConfigurationError`."""
    policy = _policy(ttl, window)
    return Request(
        key=lease_key(prefix, name),
        task=name,
        run_id=run_id or str(uuid.uuid4()),
        token=new_token(),
        ttl=policy.ttl,
        window=policy.window,
    )


@lru_cache(maxsize=64, typed=True)
def _policy(ttl: float | timedelta, window: float | timedelta) -> Policy:
    """Return these as seconds; a wrong value is refused by name."""
    return resolve(Singleton(ttl=ttl, window=window))


def deadline_after(wait: object) -> float:
    """Return when ``wait`` seconds from now are over, on the clock of leases; None is for ever."""
    if wait is None:
        return math.inf
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ConfigurationError(
            f"wait={wait!r} is not a duration; give seconds, 0 for one try, or None to wait for ever"
        )
    return monotonic() + seconds


class _Opened:
    """Stores opened by URL or for a client, so that a loop of `try_lease` does not connect each time."""

    by_url: ClassVar[dict[str, Leases]] = {}
    by_client: ClassVar[WeakKeyDictionary[object, Leases]] = WeakKeyDictionary()


def leases_of(store: object) -> Leases:
    """Return the leases of a store; one that a URL or a client names is opened once in each process."""
    # If two threads come here at once, one of the stores is dropped before it has connected.
    if isinstance(store, str):
        if store not in _Opened.by_url:
            _Opened.by_url.setdefault(store, Leases(as_store(store)))
        return _Opened.by_url[store]
    if is_store(store):
        return Leases(store)
    if store not in _Opened.by_client:
        _Opened.by_client.setdefault(store, Leases(as_store(store)))
    return _Opened.by_client[store]
