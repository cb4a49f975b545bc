"""How plain code asks for a lease: what it gave becomes a request, and it waits if it must."""

from __future__ import annotations

import math
import time
import uuid
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.keys import lease_key
from singleflight.lease import Lease, monotonic
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.leases.pacing import Wait
from singleflight.policy import Singleton, resolve
from singleflight.stores import as_store, is_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.lease import Busy
    from singleflight.policy import Policy


def wait_for(leases: Leases, request: Request, deadline: float, owner: Callable[[], object]) -> Lease:
    """Claim until it is granted.

    Raises:
        Conflict: if another run still has the lease at the deadline, or this run has ended already.
        StoreUnavailable: if the store gives no answer until then.
    """
    wait = Wait(leases, request, deadline)
    try:
        while not isinstance(answer := _ask(leases, wait.next_request(), owner), Lease):
            pause = wait.after(answer)
            if pause.listen:
                wait.listen(pause.listen)
            else:
                time.sleep(pause.sleep)
    except BaseException:
        wait.give_up()
        raise
    return answer


def _ask(leases: Leases, request: Request, owner: Callable[[], object]) -> Lease | Busy | StoreUnavailable:
    try:
        return leases.claim(request, owner=owner, anyway=True)
    except StoreUnavailable as error:
        return error


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
