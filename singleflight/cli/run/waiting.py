"""Asking for a lease until it is granted, time is over, or a signal says otherwise."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

from singleflight.cli.run.aside import Aside, Interrupted, briefly
from singleflight.cli.run.listening import Turns
from singleflight.cli.run.signals import ENDING, STOP, stop_self
from singleflight.errors import SingleflightError, StoreUnavailable
from singleflight.lease import Lease, Outcome, Reason, monotonic
from singleflight.leases.claiming import new_token
from singleflight.stores.base import Waits

if TYPE_CHECKING:
    from threading import Event

    from singleflight.cli.run.signals import Signals
    from singleflight.lease import Busy
    from singleflight.leases.claiming import Leases, Request

SLOT, TURN = 5.0, 2.0
"""Seconds for which a waiter that has died keeps the waiting slot; the latter if it had been told."""

RESERVES = 5.0
"""Seconds after which a waiter goes before fresh runs, so that a stream of them cannot starve it."""

SHORTEST, LONGEST = 0.03, 0.5
"""Seconds between two questions."""

LONGEST_WAIT = 1.0
"""Seconds after which somebody who is told asks all the same: what should have told it may have died."""

TRIES = 3
"""How often whoever may wait asks a store that has never answered: many who start at once may hinder it."""

SHARE = 20
"""The one who is next asks often, but spends at most this part of its time asking."""


def obtain(leases: Leases, request: Request, signals: Signals, *, wait: float, alone: bool) -> Lease | Busy:
    """Claim until granted, for ``wait`` seconds at most (0: once, infinity: for ever).

    Where the store tells those who wait, they take turns; only if nobody else has the same run (``alone``),
    for those who have are no others.

    A store that has answered before may be away for a ttl before waiting is given up, another one for a few
    tries. Whoever gives up leaves the waiting slot.

    Raises:
        Interrupted: if a signal ends the waiting.
        StoreUnavailable: if the store does not answer, or not any more.
    """
    try:
        turns = Turns(leases.store, request, signals) if alone and wait > 0 else None
        answer = _ask(leases, request, signals, wait, turns)
    except Interrupted:
        briefly(lambda: _leave(leases, request, wait))
        raise
    except BaseException:
        _leave(leases, request, wait)
        raise
    if not isinstance(answer, Lease):
        _leave(leases, request, wait)
    return answer


def _ask(
    leases: Leases, request: Request, signals: Signals, wait: float, turns: Turns | None
) -> Lease | Busy:
    began = heard = monotonic()
    pause, tries = SHORTEST, TRIES
    while True:
        sent, told = monotonic(), turns is not None and turns.told
        claim = request._replace(
            token=new_token(),  # an earlier claim may be taken back by its token
            wait=0 if wait <= 0 else TURN if told else SLOT,
            waits=(Waits.LISTENING if told else Waits.FIRST if sent - began > RESERVES else Waits.PASSED),
        )
        try:
            answer = _claim(leases, claim, signals)
        except StoreUnavailable:
            tries -= 1
            if tries == 0 or sent - heard > request.ttl or sent - began >= wait:
                raise
            pause = LONGEST
        else:
            if isinstance(answer, Lease):
                return answer
            tries, heard = -1, monotonic()  # from now on, only time counts
            if answer.reason is Reason.FINISHED or heard - began >= wait:
                return answer
            if turns is not None and told and answer.reason is not Reason.WINDOW:
                left = began + wait - monotonic()
                seconds = min(LONGEST_WAIT, max(SHORTEST, answer.retry_after), left)
                _sleep(signals, min(seconds + SHORTEST, left), turns.listen(seconds))
                continue
            pause = _pause(answer, request, asked=heard - sent, before=pause)
        _sleep(signals, min(pause, began + wait - monotonic()))


def _claim(leases: Leases, request: Request, signals: Signals) -> Lease | Busy:
    asked = Aside(signals, lambda: leases.claim(request, patient=True, on_lost=lambda _: signals.rouse()))
    try:
        return asked.wait()
    except Interrupted:
        late = asked.late()
        if isinstance(late, Lease):
            late.began = False
            briefly(lambda: late.release(Outcome.REQUEUED))
        raise


def _leave(leases: Leases, request: Request, wait: float) -> None:
    if wait > 0:
        with suppress(SingleflightError):
            leases.store.unqueue(request.key, request.run_id)


def _pause(busy: Busy, request: Request, *, asked: float, before: float) -> float:
    """Return how long to wait before asking again; ``asked`` is how long the store took to answer."""
    if busy.reason is Reason.WINDOW:
        return min(LONGEST, max(SHORTEST, busy.retry_after))
    if busy.waiting == request.run_id:
        return min(LONGEST, max(SHORTEST, SHARE * asked))
    spread = 1 - random.random() / 4  # noqa: S311 - spreads waiters, guards nothing
    return min(LONGEST, before * 1.5) * spread


def _sleep(signals: Signals, seconds: float, news: Event | None = None) -> None:
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0 and not (news is not None and news.is_set()):
        for number in signals.wait(left):
            if number == STOP:
                stop_self()
            elif number in ENDING:
                raise Interrupted(number)
