"""What one who waits for a lease asks, and how long it pauses after each answer; who drives it, sleeps.

Plain code sleeps in `singleflight.leases.waiting`, an event loop in `singleflight.aio`, and
`singleflight run` in `singleflight.cli.run.waiting`, where signals end it.
"""

from __future__ import annotations

import math
import random
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from singleflight.errors import ConfigurationError, Conflict, SingleflightError, StoreUnavailable
from singleflight.lease import Reason, monotonic
from singleflight.leases.claiming import new_token
from singleflight.stores.base import Waits
from singleflight.stores.optional import Waking

if TYPE_CHECKING:
    from singleflight.lease import Busy
    from singleflight.leases.claiming import Leases, Request

SHORTEST, LONGEST = 0.05, 0.5
"""Seconds between two questions of somebody who is not told when the lease is free."""

LONGEST_WAIT = 1.0
"""Seconds after which somebody who is told asks all the same: what should have told it may have died."""

SLOT, LISTENER_SLOT = 5.0, 2.0
"""Seconds for which a waiter that has died keeps the waiting slot; the latter if the store had told it."""

RESERVES = 5.0
"""Seconds after which a waiter goes before fresh runs, so that a stream of them cannot starve it."""

SHARE = 20
"""The one who is next asks often, but spends at most this part of its time asking."""


class Pause(NamedTuple):
    """What to do before the next question, in seconds: listen if that is not 0 and one can, or else sleep."""

    sleep: float
    listen: float


class Wait:
    """One who waits for a lease.

    Args:
        leases: where it asks.
        request: what it asks for.
        deadline: until when, on the clock of leases.
        listens: whether it stands in line where the store has one: not if others have the same run.
        polls: whether it takes the waiting slot where the store has no line.
        outage: seconds for which a store that has answered may be away.
        tries: how often a store that has never answered is asked, 0 for no end.
    """

    def __init__(
        self,
        leases: Leases,
        request: Request,
        deadline: float,
        *,
        listens: bool = True,
        polls: bool = False,
        outage: float = math.inf,
        tries: int = 0,
    ) -> None:
        self._leases, self._request, self._deadline = leases, request, deadline
        self._began = self._heard = self._sent = monotonic()
        self._waits = deadline > self._began
        self._listens = self._waits and listens and isinstance(leases.store, Waking)
        self._in_line = self._listens or (self._waits and polls)
        self._outage, self._tries = outage, tries
        self._pause = SHORTEST

    def next_request(self) -> Request:
        """Return what to ask now; each claim has its own token, because an earlier one may be taken back."""
        self._sent = monotonic()
        request = self._request._replace(token=new_token())
        if self._listens:
            return request._replace(wait=LISTENER_SLOT, waits=Waits.LISTENING)
        if not self._in_line:
            return request
        waits = Waits.FIRST if self._sent - self._began > RESERVES else Waits.PASSED
        return request._replace(wait=SLOT, waits=waits)

    def after(self, answer: Busy | StoreUnavailable) -> Pause:
        """Return how to wait after this answer.

        Raises:
            Conflict, StoreUnavailable: what the answer comes to, if no time is left or waiting is no use.
        """
        now = monotonic()
        left = self._deadline - now
        if isinstance(answer, StoreUnavailable):
            self._tries -= 1
            over = self._tries == 0 or self._sent - self._heard > self._outage
            if over or left <= 0:
                raise answer
            return Pause(min(left, _spread(LONGEST)), 0)
        self._tries, self._heard = 0, now  # from now on, only time counts
        if left <= 0 or answer.reason is Reason.FINISHED:
            task = self._request.task
            raise Conflict(f"{task} is taken ({answer}); wait longer, or try again later", answer)
        listen = min(left, LONGEST_WAIT, max(SHORTEST, answer.retry_after)) if self._listens else 0
        return Pause(min(left, self._poll(answer, now - self._sent)), listen)

    def _poll(self, busy: Busy, asked: float) -> float:
        if busy.waiting == self._request.run_id:
            return min(LONGEST, max(SHORTEST, SHARE * asked))
        if busy.reason is Reason.WINDOW:
            return min(LONGEST, max(SHORTEST, busy.retry_after))
        pause, self._pause = self._pause, min(LONGEST, self._pause * 1.5)
        return _spread(pause)

    def listen(self, seconds: float) -> None:
        """Return when it may be worth asking again; blocks.

        An outage is left to the next question to find out. Who may not listen polls from now on.
        """
        store = self._leases.store
        if isinstance(store, Waking):
            try:
                store.listen(self._request.key, self._request.run_id, seconds=seconds)
            except ConfigurationError:
                self._listens = False
            except StoreUnavailable:
                pass

    def give_up(self) -> None:
        """Let the others pass."""
        if self._in_line:
            request = self._request
            # A store that has just failed is not waited for: the slot lapses within seconds.
            with suppress(SingleflightError):
                self._leases.breaker.ask(lambda: self._leases.store.unqueue(request.key, request.run_id))


def _spread(pause: float) -> float:
    """Return a pause, or up to a quarter less: those who wait must not all ask at one moment."""
    return pause * (1 - random.random() / 4)  # noqa: S311 - guards nothing
