"""What becomes of a message that arrives at a worker: claim, then let it run, or end its delivery."""

from __future__ import annotations

import math
import random
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from singleflight.dramatiq import endings, errors, gate, joining
from singleflight.dramatiq.abort import Abort
from singleflight.dramatiq.delivery import write
from singleflight.dramatiq.gate import Answer, Granted
from singleflight.errors import StoreUnavailable
from singleflight.events import Kind, about, short_key
from singleflight.identity import message_id_of
from singleflight.lease import Busy, Outcome, Reason
from singleflight.leases.releasing import release_of
from singleflight.log import logger
from singleflight.policy import UNSET
from singleflight.printable import printable
from singleflight.stores.view import View
from singleflight.tasks.decisions import (
    CROWD,
    OUTAGE,
    SHORTEST_DEFERRAL,
    Defer,
    Drop,
    Refuse,
    Skip,
    Waiter,
    deferral,
    next_step,
)

if TYPE_CHECKING:
    from dramatiq import Broker
    from dramatiq.broker import MessageProxy

    from singleflight.dramatiq.gate import Ticket
    from singleflight.leases.claiming import Leases, Request
    from singleflight.policy import Policy
    from singleflight.tasks.delivery import Delivery


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
            joined = self._joined()
            if joined is not None:
                return joined
            self._wait_for_retry()
            answer = self.leases.claim(self.request, on_lost=abort, owner=weakref.ref(self.message))
        except StoreUnavailable as error:
            return self._without_store(error)
        if isinstance(answer, Busy):
            if self.observing:
                self.leases.tell(Kind.OBSERVED, self.request, answer)
                return None
            return self._refused(answer)
        joined = self._joined()  # again: the other run may have ended between the first look and the grant
        if joined is not None:
            answer.began = self.delivery.must_run
            return Granted(answer, self.message.message_id, None, keeps_slot=False, instead=joined)
        answer.began = self.delivery.must_run
        if self.delivery.carried.deferrals:
            write(self.message, self.delivery.carried.started())
        return Granted(answer, self.message.message_id, abort, keeps_slot=self.policy.at_publish)

    @property
    def _joins(self) -> str | None:
        """The run whose result this one waits for, since it has met it."""
        return self.delivery.carried.joins if self.policy.on_conflict == "join" else None

    def _joined(self) -> Ticket | None:
        """Return the result of the run that this one waits for, if it has one.

        The store must know that run under the same key, for the message that names it may be anybody's: or it
        could hand the result of any message to whoever may read its own.
        """
        found = None if self._joins is None else joining.joined(self.broker, self.message, self._joins)
        if found is None or self._joins is None:
            return None
        return found if self._joins in self._view().known_runs else None

    def _wait_for_retry(self) -> None:
        """Wait on if that run has failed and will be tried again: its key is free meanwhile."""
        if self._joins is not None and self._view().between_attempts(self._joins):
            self._defer(deferral(self.delivery.carried.deferrals, math.inf, random.random()))  # noqa: S311

    def _view(self) -> View:
        return View(self.leases.store.peek(self.request.key))

    def _defer(self, delay: float, *, resumed: bool = False, joins: str | None = None) -> NoReturn:
        carried = self.delivery.carried.deferred(must_run=self.delivery.must_run or resumed, joins=joins)
        endings.defer(self.broker, self.message, carried, delay)

    def _refused(self, busy: Busy) -> Ticket:
        tell, carried = self.leases.tell, self.delivery.carried
        age = math.inf if busy.since is None else time.time() - busy.since
        waiter = Waiter(self.delivery.run_id, carried.deferrals, carried.waited, self.delivery.must_run, age)
        step = next_step(busy, self.policy, waiter, random.random())  # noqa: S311 - spreads waiters
        joins = self.policy.on_conflict == "join" and not (self.delivery.must_run or busy.resumed)
        # Its release follows its result at once. Where it does not, the result is an old one of the same id.
        ending = busy.reason is Reason.RUNNING and not carried.goes_first
        ending = ending and (joins or isinstance(step, Skip | Refuse))
        if ending and joining.is_known(self.broker, self.message, busy.run_id):
            step, joins = Defer(SHORTEST_DEFERRAL), False
        match step:
            case Drop():
                tell(Kind.DROPPED, self.request, busy)
                endings.drop(self.message, "a late copy of a run that has ended")
            case Defer(delay):
                tell(Kind.DEFERRED, self.request, busy, delay=delay)
                if carried.deferrals and carried.deferrals % CROWD == 0:
                    logger.warning(
                        "%s[%s] has been deferred %d times: many runs wait for %s",
                        self.request.task, self.request.run_id,
                        carried.deferrals, short_key(self.request.key),
                    )  # fmt: skip
                self._defer(delay, resumed=busy.resumed, joins=busy.ahead if joins else None)
            case Refuse():
                tell(Kind.REFUSED, self.request, busy)
                self._leave_at_end(waits=busy.waiting == self.delivery.run_id)
                raise errors.Conflict(f"{self.message.actor_name}: {busy}", busy)
            case Skip(gave_up):
                tell(Kind.GAVE_UP if gave_up else Kind.SKIPPED, self.request, busy)
        self._leave_at_end(waits=busy.waiting == self.delivery.run_id)
        ahead = message_id_of(busy.ahead)
        # Two publishes of one id share a result, and it is that of the one that runs.
        has_result = ahead != self.message.message_id
        return self._skip(f"duplicate of run {printable(ahead)} ({busy.reason})", has_result=has_result)

    def _leave_at_end(self, *, waits: bool = False) -> None:
        """Have the slot freed of a run that has one, or whose sender is just about to ask for it.

        It is recorded as ended only once its end is stored: a copy must be able to do that again.
        """
        if waits or self.policy.at_publish:
            gate.leave_at_end(self.message, release_of(self.request, Outcome.CANCELLED))

    def _without_store(self, error: StoreUnavailable) -> Ticket | None:
        """Do what ``on_store_error`` says; an outage is never taken for a conflict."""
        match "run" if self.observing else self.policy.on_store_error:
            case "raise":
                self._leave_at_end()  # the store may be back by then
                raise errors.StoreUnavailable(str(error)) from error
            case "skip":
                self._leave_at_end()
                return self._skip(f"the store was away: {error}")
            case "defer":
                waited = max(OUTAGE, self.delivery.carried.deferrals)
                self._defer(deferral(waited, math.inf, random.random()))  # noqa: S311
            case "run":
                self.leases.notify(about(self.request, Kind.UNGUARDED, str(error)))
        return None

    def _skip(self, why: str, *, has_result: bool = True) -> Answer:
        if self.policy.skip_result is UNSET:
            endings.skip(self.broker, self.message, why, has_result=has_result)
        return Answer(self.policy.skip_result)
