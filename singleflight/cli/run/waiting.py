"""Asking for a lease until it is granted, time is over, or a signal says otherwise."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from singleflight.cli.run.aside import Aside, Interrupted, briefly, sleep
from singleflight.errors import StoreUnavailable
from singleflight.lease import Lease, Outcome, monotonic
from singleflight.leases.pacing import Wait

if TYPE_CHECKING:
    from singleflight.cli.run.signals import Signals
    from singleflight.lease import Busy
    from singleflight.leases.claiming import Leases, Request
    from singleflight.leases.pacing import Pause

TRIES = 3
"""How often whoever may wait asks a store that has never answered: many who start at once may hinder it."""


def obtain(leases: Leases, request: Request, signals: Signals, *, wait: float, alone: bool) -> Lease:
    """Claim until granted, for ``wait`` seconds at most (0: once, infinity: for ever).

    Where the store tells those who wait, they stand in line; only if nobody else has the same run
    (``alone``), for those who have are no others.

    A store that has answered before may be away for a ttl before waiting is given up, another one for a few
    tries. Whoever gives up leaves the waiting slot.

    Raises:
        Conflict: if it is not granted in that time, or never will be.
        Interrupted: if a signal ends the waiting.
        StoreUnavailable: if the store does not answer, or not any more.
    """
    waiter = Wait(
        leases, request, monotonic() + wait, listens=alone, polls=True, outage=request.ttl, tries=TRIES
    )
    try:
        while not isinstance(answer := _ask(leases, waiter.next_request(), signals), Lease):
            _rest(waiter, waiter.after(answer), signals)
    except Interrupted:
        briefly(waiter.give_up)
        raise
    except BaseException:
        waiter.give_up()
        raise
    return answer


def _ask(leases: Leases, request: Request, signals: Signals) -> Lease | Busy | StoreUnavailable:
    asked = Aside(signals, lambda: leases.claim(request, anyway=True, on_lost=lambda _: signals.rouse()))
    try:
        return asked.wait()
    except StoreUnavailable as error:
        return error
    except Interrupted:
        late = asked.late()
        if isinstance(late, Lease):
            late.began = False
            briefly(lambda: late.release(Outcome.REQUEUED))
        raise


def _rest(waiter: Wait, pause: Pause, signals: Signals) -> None:
    if not pause.listen:
        sleep(signals, pause.sleep)
        return
    with suppress(TimeoutError):
        Aside(signals, lambda: waiter.listen(pause.listen)).wait(pause.listen)
