"""What becomes of a message that arrives at a worker: claim, then let it run, or end its delivery."""

from __future__ import annotations

import math
import random
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from singleflight.decisions import Defer, Drop, Refuse, Skip, Waiter, deferral, next_step
from singleflight.dramatiq import endings, errors
from singleflight.dramatiq.abort import Abort
from singleflight.dramatiq.delivery import write
from singleflight.dramatiq.gate import Answer, Granted
from singleflight.errors import StoreUnavailable
from singleflight.events import Event, Kind, logger
from singleflight.keys import short_key
from singleflight.lease import Busy
from singleflight.policy import UNSET

if TYPE_CHECKING:
    from dramatiq import Broker
    from dramatiq.broker import MessageProxy

    from singleflight.dramatiq.delivery import Delivery
    from singleflight.dramatiq.gate import Ticket
    from singleflight.flight import Leases, Request
    from singleflight.policy import Policy

CROWD = 10
"""Deferrals of one run after which the log says that many wait for its key."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message of a singleton actor at one worker."""

    broker: Broker
    message: MessageProxy
    delivery: Delivery
    policy: Policy
    request: Request
    leases: Leases
    observing: bool
    """Everything runs, and what would not have is reported."""

    def admission(self) -> Ticket | None:
        """Return with what the body may be called: a lease, a made-up answer, or nothing.

        Raises:
            Ended: the message is skipped, deferred or dropped.
            Conflict, StoreUnavailable: it fails, by its policy.
            ConfigurationError: the store can never answer.
        """
        abort = Abort() if self.policy.on_lost == "abort" else None
        try:
            answer = self.leases.claim(self.request, on_lost=abort, owner=weakref.ref(self.message))
        except StoreUnavailable as error:
            return self._without_store(error)
        if not isinstance(answer, Busy):
            answer.began = self.delivery.kin
            if self.delivery.carried.deferrals:
                write(self.message.options, self.delivery.carried.started())
            return Granted(answer, self.message.message_id, abort, keeps_slot=self.policy.at_publish)
        if self.observing:
            self.leases.tell(Kind.OBSERVED, self.request, answer)
            return None
        return self._refused(answer)

    def _refused(self, busy: Busy) -> Ticket:
        tell, carried = self.leases.tell, self.delivery.carried
        age = math.inf if busy.since is None else time.time() - busy.since
        waiter = Waiter(self.delivery.run_id, carried.deferrals, carried.waited, self.delivery.kin, age)
        match next_step(busy, self.policy, waiter, random.random()):  # noqa: S311 - spreads waiters
            case Drop():
                tell(Kind.DROPPED, self.request, busy)
                endings.drop(self.message, "a late copy of a run that has ended")
            case Defer(delay):
                tell(Kind.DEFERRED, self.request, busy, delay=delay)
                if carried.deferrals and carried.deferrals % CROWD == 0:
                    logger.warning(
                        "%s has been deferred %d times: many runs wait for %s",
                        self.message, carried.deferrals, short_key(self.request.key),
                    )  # fmt: skip
                kin = self.delivery.kin or busy.resumed
                endings.defer(self.broker, self.message, carried.deferred(kin=kin), delay)
            case Refuse():
                tell(Kind.REFUSED, self.request, busy)
                raise errors.Conflict(f"{self.message.actor_name}: {busy}")
            case Skip(gave_up):
                tell(Kind.GAVE_UP if gave_up else Kind.SKIPPED, self.request, busy)
        return self._skip(f"duplicate of run {busy.run_id} ({busy.reason})")

    def _without_store(self, error: StoreUnavailable) -> Ticket | None:
        """Do what ``on_store_error`` says; an outage is never taken for a conflict."""
        match "run" if self.observing else self.policy.on_store_error:
            case "raise":
                raise errors.StoreUnavailable(str(error)) from error
            case "skip":
                return self._skip(f"the store was away: {error}")
            case "defer":
                carried = self.delivery.carried
                delay = deferral(max(3, carried.deferrals), float("inf"), random.random())  # noqa: S311
                endings.defer(self.broker, self.message, carried.deferred(kin=self.delivery.kin), delay)
        self.leases.notify(
            Event(
                kind=Kind.UNGUARDED,
                task=self.request.task,
                key=short_key(self.request.key),
                run_id=self.request.run_id,
                token=self.request.token,
                reason=str(error),
            )
        )
        return None

    def _skip(self, why: str) -> Answer:
        if self.policy.skip_result is UNSET:
            endings.skip(self.broker, self.message, why)
        return Answer(self.policy.skip_result)
