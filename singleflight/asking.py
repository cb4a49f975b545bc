"""How plain code asks for a lease: what it gave becomes a request, and it waits if it must."""

from __future__ import annotations

import math
import random
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from singleflight.errors import ConfigurationError, Conflict, SingleflightError, StoreUnavailable
from singleflight.flight import Leases, Request, new_token
from singleflight.keys import lease_key
from singleflight.lease import Lease, Reason, monotonic
from singleflight.policy import Singleton, resolve
from singleflight.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.stores.base import Store

SHORTEST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks of somebody who waits for a lease."""


def wait_for(leases: Leases, request: Request, deadline: float, owner: Callable[[], object]) -> Lease:
    """Claim until it is granted; every claim has its own token, because an earlier one may be taken back.

    Raises:
        Conflict: if another run still has the lease at the deadline, or this run has ended already.
        StoreUnavailable: if the store gives no answer until then.
    """
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


def request_for(
    name: str, *, ttl: float | timedelta, window: float | timedelta, run_id: str | None, prefix: str
) -> Request:
    """Return what to ask the store for the lease called ``name``; a wrong value is a `ConfigurationError`."""
    policy = resolve(Singleton(ttl=ttl, window=window))  # refuses wrong values by name
    return Request(
        key=lease_key(prefix, name),
        task=name,
        run_id=run_id or str(uuid.uuid4()),
        token=new_token(),
        ttl=policy.ttl,
        window=policy.window,
    )


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
    """Stores opened by URL in this process, so that a loop of `try_lease` does not connect each time."""

    by_url: ClassVar[dict[str, Leases]] = {}


def leases_of(store: Store | str) -> Leases:
    """Return the leases of a store; one that is named by its URL is opened once in each process."""
    if not isinstance(store, str):
        return Leases(store)
    if "://" not in store:
        raise ConfigurationError(f"{store!r} is not a store URL; write one such as redis://host:6379/0")
    if store not in _Opened.by_url:
        _Opened.by_url[store] = Leases(open_store(store))
    return _Opened.by_url[store]
