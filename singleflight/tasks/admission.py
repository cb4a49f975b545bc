"""What becomes of an arriving message, whatever framework delivers it: decided here, returned as a value."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from singleflight.errors import StoreUnavailable
from singleflight.events import Kind, about, short_key
from singleflight.identity import message_id_of
from singleflight.lease import Busy, Outcome, Reason
from singleflight.log import logger
from singleflight.policy import UNSET
from singleflight.printable import printable
from singleflight.stores.lining import MAX_MESSAGE, Wait
from singleflight.stores.lining import Kind as Waiting
from singleflight.tasks.adapter import (
    Answer,
    Dropped,
    Later,
    Nothing,
    Parked,
    Refused,
    Returned,
    Run,
    Skipped,
    Unavailable,
)
from singleflight.tasks.decisions import (
    CROWD,
    OUTAGE,
    SHORTEST_DEFERRAL,
    SLOT_MARGIN,
    Defer,
    Drop,
    Refuse,
    Skip,
    Waiter,
    deferral,
    next_step,
)

if TYPE_CHECKING:
    from singleflight.lease import Lease
    from singleflight.leases.abort import Abort
    from singleflight.leases.claiming import Leases, Request
    from singleflight.policy import Policy
    from singleflight.stores.base import Release
    from singleflight.stores.view import View
    from singleflight.tasks.adapter import Adapter, Fate, Result
    from singleflight.tasks.decisions import Step
    from singleflight.tasks.delivery import Delivery
    from singleflight.tasks.message import Carried


_JOINED = (Reason.RUNNING, Reason.WINDOW, Reason.RESERVED)
"""Why a claim is refused by a run whose result is, or will be, there to take over."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One message of a singleton task at one worker."""

    adapter: Adapter
    leases: Leases
    policy: Policy
    delivery: Delivery
    request: Request
    observing: bool = False
    """Everything runs, and what would not have is told."""

    def decide(self) -> Fate:
        """Claim, and return what becomes of the message.

        Raises:
            ConfigurationError: if the store can never answer.
        """
        abort = self._abort()
        try:
            met = self._met()
            if met is not None:
                return met
            answer = self.leases.claim(self.request, on_lost=abort, owner=self.adapter.owner)
        except StoreUnavailable as error:
            return self._without_store(error)
        if not isinstance(answer, Busy):
            return self._granted(answer, abort)
        if self.observing:
            self.leases.tell(Kind.OBSERVED, self.request, answer)
            return Run()
        return self._refused(answer)

    def _abort(self) -> Abort | None:
        return self.adapter.abort() if self.policy.on_lost == "abort" else None

    def _granted(self, lease: Lease, abort: Abort | None) -> Fate:
        lease.began = self.delivery.must_run
        met = self._met(lease)
        if met is not None:
            return met
        carried = self.delivery.carried
        return Run(lease, abort, carried.started() if carried.deferrals else None)

    @property
    def _joins(self) -> bool:
        """Whether a duplicate takes over the result of the run that it meets.

        So does one whose publisher has asked for the waiting slot: others may have been given its result, and
        who lost a race of publishers is no worse off than who came later.
        """
        policy = self.policy
        if policy.on_conflict == "join":
            return True
        shares = policy.at_most_one == "waiting_or_running" and policy.on_conflict == "skip"
        asked = self.delivery.carried.slot is not None
        return shares and asked and policy.skip_result is UNSET and self.adapter.shares_results

    @property
    def _joined(self) -> str | None:
        """The run whose end this one waits for, since it has met it."""
        return self.delivery.carried.joins if self._joins and not self.observing else None

    def _met(self, lease: Lease | None = None) -> Fate | None:
        """Return what becomes of a run that waits for another one's end; None if it may go on.

        That run may be between two attempts, when its key is free. Asked again under the ``lease``, because
        it may have ended, or failed, between the first look and the grant.
        """
        run_id = self._joined
        if run_id is None:
            return None
        try:
            view = self.leases.peek(self.request)
        except StoreUnavailable:
            if lease is None:
                raise
            return None  # it has just answered, and the lease is there
        result = self._result_of(run_id, view)
        if result is not None:
            return Answer(result, lease, None if lease else self._leaves())
        if not view.between_attempts(run_id):
            return None
        if lease is not None:
            lease.release(Outcome.REQUEUED)
        return self._refused(Busy(Reason.RUNNING, run_id, math.inf))

    def _result_of(self, run_id: str, view: View) -> Result | None:
        """Return a run's result if it has had, or waited for, the key: the message that names it is foreign.

        Else a message could hand the result of any run to whoever may read its own.
        """
        result = self.adapter.result_of(run_id) if run_id in view.known_runs else None
        return None if isinstance(result, Nothing) else result

    def _refused(self, busy: Busy) -> Fate:
        tell = self.leases.tell
        if busy.reason is Reason.ENDING:
            tell(Kind.SKIPPED, self.request, busy)
            return Skipped("dropped while it waited", leaves=self.delivery.leaving(self.request.key))
        step, carried = self._step(busy)
        match step:
            case Drop():
                tell(Kind.DROPPED, self.request, busy)
                return Dropped()
            case Defer(delay):
                return self._wait(busy, self.adapter.countable(delay), carried)
            case Refuse():
                tell(Kind.REFUSED, self.request, busy)
                return Refused(busy, self._leaves(busy))
            case Skip(gave_up):
                tell(Kind.GAVE_UP if gave_up else Kind.SKIPPED, self.request, busy)
                ahead = message_id_of(busy.ahead)
                has_result = ahead != message_id_of(self.delivery.run_id)
                why = f"duplicate of run {printable(ahead)} ({busy.reason})"
                return self._skipped(Skipped(why, has_result, self._leaves(busy)))

    def _step(self, busy: Busy) -> tuple[Step, Carried]:
        """Return what becomes of a run that was refused, and what it carries if it comes back."""
        delivery, carried, longest = self.delivery, self.delivery.carried, self.adapter.longest_deferral
        must_run = delivery.must_run or delivery.parent_id == message_id_of(busy.run_id)
        age = math.inf if busy.since is None else time.time() - busy.since
        waiter = Waiter(
            delivery.run_id, carried.deferrals, carried.waited, must_run, age, longest, carried.order > 0
        )
        step = next_step(busy, self.policy, waiter, random.random())  # noqa: S311 - spreads waiters
        joins = not (must_run or busy.resumed) and busy.reason in _JOINED and self._joins
        # Its release follows its result at once. Where it does not, the result is an old one of the same id.
        ending = busy.reason is Reason.RUNNING and not carried.goes_first
        ending = ending and (joins or isinstance(step, Skip | Refuse))
        if ending and self.adapter.result_of(busy.run_id) is not None:
            step, joins = Defer(SHORTEST_DEFERRAL), False
        elif joins and busy.reason is not Reason.WINDOW and isinstance(step, Skip) and not step.gave_up:
            step = Defer(deferral(carried.deferrals, busy.retry_after, random.random(), longest))  # noqa: S311
        if isinstance(step, Defer) and not self.adapter.has_later:
            step = Skip()
        met = busy.ahead if joins else None
        return step, carried.deferred(must_run=must_run or busy.resumed, joins=met)

    def _wait(self, busy: Busy, delay: float, carried: Carried) -> Fate:
        """Let a refused run wait: in the line of its key if there is one, or else by countdown."""
        if math.isinf(busy.retry_after) or not self.leases.lines:
            return self._later(busy, delay, carried)  # the former: the run that it joins is between attempts
        message = self.adapter.message(carried) or b""
        if 0 < len(message) <= MAX_MESSAGE and self.leases.calling is not None:
            kind = Waiting.JOINING if carried.joins else Waiting.PARKED
            life_ms = round(self.request.ttl * 1000) if carried.joins else 0
            wait = Wait(kind, self.leases.calling.home, message, life_ms)
        else:
            wait = Wait(Waiting.COUNTING, life_ms=round((delay + SLOT_MARGIN) * 1000))
        # Its slot tells others that it waits, for as long as its message may be on its way.
        request = self.request
        request = request._replace(wait=self.leases.store.remember) if request.wait else request
        abort = self._abort()
        try:
            answer, order = self.leases.park(request, wait, on_lost=abort, owner=self.adapter.owner)
        except StoreUnavailable:
            return self._later(busy, delay, carried)
        if not isinstance(answer, Busy):
            return self._granted(answer, abort)
        if answer.reason in (Reason.FINISHED, Reason.ENDING):
            return self._refused(answer)
        if wait.kind is Waiting.COUNTING:
            return self._later(answer, delay, replace(carried, order=order))
        self.leases.tell(Kind.DEFERRED, request, answer)
        return Parked()

    def _later(self, busy: Busy, delay: float, carried: Carried) -> Later:
        self.leases.tell(Kind.DEFERRED, self.request, busy, delay=delay)
        deferrals = self.delivery.carried.deferrals
        if deferrals and deferrals % CROWD == 0:
            logger.warning(
                "%s[%s] has been deferred %d times: many runs wait for %s",
                self.request.task, message_id_of(self.request.run_id), deferrals, short_key(self.request.key),
            )  # fmt: skip
        return Later(delay, carried, self._leaves(busy))

    def _skipped(self, skipped: Skipped) -> Answer | Skipped:
        result = self.policy.skip_result
        return skipped if result is UNSET else Answer(Returned(result), leaves=skipped.leaves)

    def _leaves(self, busy: Busy | None = None) -> Release | None:
        """Return what ends the waiting of a run that stands in the line, or has the slot or is to have it."""
        carried = self.delivery.carried
        asked = carried.slot == self.request.key or carried.order > 0
        waits = busy is not None and busy.waiting == self.delivery.run_id
        return self.delivery.leaving(self.request.key) if asked or waits else None

    def _without_store(self, error: StoreUnavailable) -> Fate:
        """Do what ``on_store_error`` says; an outage is never taken for a conflict."""
        carried, adapter = self.delivery.carried, self.adapter
        leaves = self._leaves()  # the store may be back by then
        match "run" if self.observing else self.policy.on_store_error:
            case "run":
                self.leases.notify(about(self.request, Kind.UNGUARDED, str(error)))
                return Run()
            case "skip":
                return self._skipped(Skipped(f"the store was away: {error}", leaves=leaves))
            case "defer" if adapter.has_later:
                waited, longest = max(OUTAGE, carried.deferrals), adapter.longest_deferral
                delay = deferral(waited, math.inf, random.random(), longest)  # noqa: S311
                carried = carried.deferred(must_run=self.delivery.must_run)
                return Later(adapter.countable(delay), carried, leaves)
            case _:
                return Unavailable(error, leaves)
