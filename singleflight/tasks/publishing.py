"""The publisher's look at a key: does a run wait or work already? Advisory, for the worker decides."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from singleflight.errors import Conflict, SingleflightError, StoreUnavailable
from singleflight.events import NOT_SENT, Event, Kind, short_key
from singleflight.identity import is_marked, message_id_of
from singleflight.lease import Busy, Reason, monotonic
from singleflight.leases.breaker import Breaker
from singleflight.log import logger
from singleflight.options import LONGEST, SHORTEST
from singleflight.stores.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.events import Notify
    from singleflight.policy import Policy
    from singleflight.stores.base import Release, Store

Answer = TypeVar("Answer")


LEAVE_AGAIN = 1.0
"""Seconds between two tries to free a waiting slot."""


def leave(slots: Slots, release: Release, *, ended: bool, until: float = 0.0) -> None:
    """Let a run wait no longer that will not start; if the store is away, its slot lapses by itself.

    ``ended`` also records that: its publisher may be just about to ask for the slot in its name. Never
    raises: it may be called in a thread, where nobody would hear of it.

    Args:
        slots: the waiting slots.
        release: how the run ends.
        ended: whether it has ended for good.
        until: a moment on the clock of leases; so long it is tried if the store is away.
    """
    while True:
        try:
            slots.ask(lambda store: store.release(release) if ended else store.unqueue(*release[:2]))
        except Exception as error:  # noqa: BLE001 - of other errors nobody would hear
            if isinstance(error, StoreUnavailable) and monotonic() < until:
                time.sleep(LEAVE_AGAIN)
                continue
            logger.warning(
                "run %s of %s: its waiting slot is left to lapse: %s",
                message_id_of(release.run_id), short_key(release.key), error,
            )  # fmt: skip
        return


class Slots:
    """The waiting slots of one store, as publishers ask for them."""

    def __init__(self, store: Store, notify: Notify, breaker: Breaker | None = None) -> None:
        """Ask this store, and report its errors; ``breaker`` is that of the claims in it."""
        self.notify = notify
        self.breaker = breaker or Breaker()
        self._store = store

    def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """Put one question to the store; one that has failed rests, for a publisher must not be slow.

        Raises:
            StoreUnavailable: if the store does not answer, or rests.
        """
        return self.breaker.ask(lambda: question(self._store))


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one message in the queue for its key."""

    slots: Slots
    key: str
    task: str
    policy: Policy
    publisher: str = ""
    """The run that publishes from inside its own body: it is not in its successor's way."""
    is_over: Callable[[str], bool] | None = None
    """Whether a message's result is out, though the store may not know yet: then it is in nobody's way."""

    def in_the_way(self) -> Busy | None:
        """Return the run that waits for the key, or, if it counts, the one that works; None if there is none.

        A store that is away is no reason not to publish, unless the policy is to raise: the worker decides.

        Raises:
            Conflict: if there is one and the policy is to raise.
            StoreUnavailable: if the store does not answer and the policy is to raise.
        """
        try:
            look = self.slots.ask(lambda store: store.peek(self.key))
        except StoreUnavailable:
            if self.policy.on_store_error == "raise":
                raise
            return None
        busy = View(look).in_the_way(running_too=self._running_too)
        if busy is not None and self._is_over(busy):
            if busy.reason is Reason.QUEUED:
                self.leave(busy.run_id)
            return None
        if busy is not None:
            busy = busy.for_callers()
            refused = self.policy.on_conflict == "raise"
            self._tell(
                Kind.REFUSED if refused else Kind.SKIPPED, f"{NOT_SENT}{busy.reason}", busy.run_id, busy
            )
            if refused:
                raise Conflict(f"not sent: {busy}", busy)
        return busy

    def take(self, run_id: str, delay: float, expires: float = math.inf) -> None:
        """Let a run wait that has just been published, to start in ``delay`` to ``expires`` seconds.

        Who else was quicker, or has started meanwhile, stays what it is: the worker decides.
        """
        life = min(delay + self.policy.queue_life, expires, LONGEST)
        ttl_ms = round(max(life, SHORTEST) * 1000)
        try:
            self.slots.ask(
                lambda store: store.queue(self.key, run_id, ttl_ms=ttl_ms, running_too=self._running_too)
            )
        except StoreUnavailable:
            self._tell_outage("sent, as all duplicates are for a while", run_id)

    def cancel(self, release: Release) -> None:
        """Let a run wait no longer that will never start; record that unless it has begun elsewhere."""
        try:
            look = self.slots.ask(lambda store: store.peek(self.key))
        except SingleflightError:
            look = None
        leave(self.slots, release, ended=not View(look).begun(release.run_id))

    def leave(self, run_id: str) -> None:
        """Let a run wait no longer that will never start."""
        try:
            self.slots.ask(lambda store: store.unqueue(self.key, run_id))
        except StoreUnavailable:
            self._tell_outage("its place is kept until it lapses", run_id)

    def _is_over(self, busy: Busy) -> bool:
        # Under an id that has been published before, the result may be that of an earlier run.
        if self.is_over is None or (busy.reason is Reason.QUEUED and is_marked(busy.run_id)):
            return False
        return self.is_over(message_id_of(busy.run_id))

    @property
    def _running_too(self) -> bool:
        return self.policy.at_most_one == "waiting_or_running" and not self.publisher

    def _tell_outage(self, what: str, run_id: str) -> None:
        """Tell an outage once, with its cause: this request may not even have been put."""
        breaker = self.slots.breaker
        if breaker.is_news():
            self._tell(Kind.STORE_ERROR, f"{what}: {breaker.failure}", run_id)

    def _tell(self, kind: Kind, reason: str, run_id: str, busy: Busy | None = None) -> None:
        holder = None if busy is None else busy.holder
        age = None if busy is None or busy.since is None else max(0.0, time.time() - busy.since)
        self.slots.notify(
            Event(
                kind=kind,
                task=self.task,
                key=short_key(self.key),
                run_id=message_id_of(run_id),
                reason=reason,
                holder=holder,
                age=age,
            )
        )
