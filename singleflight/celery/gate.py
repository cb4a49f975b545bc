"""The gate before a task's body: claim, then run under the lease, or end the delivery without running."""

from __future__ import annotations

import math
import os
import random
import sys
import time
import weakref
from contextlib import nullcontext
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Ignore, Reject, Retry

from singleflight.api import holding
from singleflight.celery import endings, joining
from singleflight.celery.abort import Abort
from singleflight.celery.delivery import HEADER, may_come_back, read
from singleflight.celery.state import State, arrival_of, known_state, state_of
from singleflight.errors import ConfigurationError, Conflict, LeaseLost, StoreUnavailable
from singleflight.events import Event, Kind, short_key
from singleflight.identity import message_id_of
from singleflight.lease import Busy, Lease, Outcome, Reason
from singleflight.log import logger
from singleflight.printable import printable
from singleflight.tasks.decisions import (
    CROWD,
    OUTAGE,
    SHORTEST_DEFERRAL,
    SLOT_MARGIN,
    Defer,
    Drop,
    Refuse,
    Skip,
    Step,
    Waiter,
    deferral,
    next_step,
)
from singleflight.tasks.message import id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from singleflight.celery.runtime import Runtime
    from singleflight.leases.claiming import Request
    from singleflight.policy import Policy
    from singleflight.tasks.delivery import Delivery
    from singleflight.tasks.message import Carried


def run(runtime: Runtime, task: Task, body: Callable[[], Any], before: Callable[[], None]) -> Any:
    """Run ``body`` under a lease, after ``before``; or end the delivery as its policy says.

    Raises:
        Ignore, Reject: Celery's own signs that a delivery is over.
        Conflict: if the policy is to raise.
        StoreUnavailable: if the store is away and the policy is to raise.
        ConfigurationError: if the store can never answer, or the message names options that cannot be.
    """
    context = task.request
    eager, arrival = state_of(context).eager, arrival_of(context.properties)
    if arrival is not None and (not isinstance(context.id, str) or id_of(context.id) != arrival.message_id):
        context.id = arrival.message_id  # Celery lets a message's body replace the id that it came with
    delivery = read(context.__dict__, task.name, arrival, eager=eager)
    slot = delivery.carried.slot
    try:
        policy = runtime.policy(task, delivery)
        request = None if policy is None else runtime.request(task, policy, delivery)
    except ConfigurationError:
        if slot is not None and runtime.is_own(task, slot):
            state_of(context).refused = slot, delivery
        raise
    if slot is not None and (request is None or request.key != slot) and runtime.is_own(task, slot):
        runtime.leave(slot, delivery)
    if policy is None or request is None:
        before()
        return body()
    other = joining.met(task, policy, delivery.carried)
    if other is not None and other.is_over and joining.was_there(runtime, request.key, other.run_id):
        return other.take_over()
    if other is not None and other.retries and joining.will_go_on(runtime, request.key, other.run_id):
        return _refused(runtime, task, policy, delivery, request, other.busy)
    return _claim(runtime, task, policy, delivery, request, body, before)


def _claim(
    runtime: Runtime,
    task: Task,
    policy: Policy,
    delivery: Delivery,
    request: Request,
    body: Callable[[], Any],
    before: Callable[[], None],
) -> Any:
    context = task.request
    abort = Abort() if policy.on_lost == "abort" else None
    try:
        answer = runtime.leases.claim(request, on_lost=abort, owner=weakref.ref(context))
    except StoreUnavailable as error:
        return _without_store(runtime, task, policy, delivery, request, error, body, before)
    if isinstance(answer, Busy):
        if runtime.enabled == "observe":
            runtime.leases.tell(Kind.OBSERVED, request, answer)
            before()
            return body()
        return _refused(runtime, task, policy, delivery, request, answer)
    other = joining.met(task, policy, delivery.carried)  # again: it may have ended since the first look
    if other is not None and other.is_over and joining.was_there(runtime, request.key, other.run_id):
        state_of(context).lease = answer
        answer.began = delivery.must_run
        return other.take_over()
    state_of(context).keeps_slot = policy.at_publish
    return _under(answer, task, delivery, body, before, abort)


def release(task: Task, task_id: str | None, state: str | None) -> None:
    """Give back the lease of a request that Celery has finished with, result and callbacks included."""
    ours = known_state(task.request)
    if ours is None or task.request.id != task_id:
        return  # of the latter, some pool mixes the requests of several runs
    lease, ours.lease = ours.lease, None
    if lease is not None:
        # Celery calls a body that has returned a success before the result is stored, so look for whatever
        # has struck since then.
        dying = sys.exc_info()[0] is not None
        outcome = Outcome.REQUEUED if dying else _OUTCOMES.get(state, Outcome.REQUEUED)
        if outcome.final and ours.again is not None:
            outcome = Outcome.RETRYING  # `retry(throw=False)`, or a body that has swallowed `Retry`
        elif outcome is Outcome.FAILED and may_come_back(task):
            outcome = Outcome.REQUEUED
        _give_back(lease, ours, outcome)
    elif ours.refused is not None:
        (key, delivery), ours.refused = ours.refused, None
        ended = state in (states.SUCCESS, states.IGNORED) or (
            state == states.FAILURE and not may_come_back(task)
        )
        task.app.singleflight.leave(key, delivery, ended=ended)


def _give_back(lease: Lease, ours: State, outcome: Outcome) -> None:
    keeps_slot = outcome is Outcome.RETRYING and ours.keeps_slot
    lease.release(outcome, again=(ours.again or 0.0) + SLOT_MARGIN if keeps_slot else 0.0)


_OUTCOMES = {
    states.SUCCESS: Outcome.FINISHED,
    states.FAILURE: Outcome.FAILED,
    states.RETRY: Outcome.RETRYING,
}
"""Ignored and rejected runs may come back (`Task.replace` ignores), as may one whose process is dying."""


def _under(
    lease: Lease,
    task: Task,
    delivery: Delivery,
    body: Callable[[], Any],
    before: Callable[[], None],
    abort: Abort | None = None,
) -> Any:
    context = task.request
    state_of(context).lease = lease
    lease.began = delivery.must_run
    if delivery.carried.deferrals:
        header = delivery.carried.started().write(delivery.run_id, task.name)
        context.headers = {**(context.headers or {}), HEADER: header}
    before()
    lease.began = True
    with holding(lease), abort.armed(lease) if abort else nullcontext():
        returned = body()
    return _awaited(lease, task, context, returned) if isinstance(returned, CoroutineType) else returned


async def _awaited(lease: Lease, task: Task, context: Any, body: CoroutineType[Any, Any, Any]) -> Any:
    """Do an async body under its lease, for pools that await what Celery takes for a result.

    It gives the lease back itself: when the pool tells of the end, `Task.request` may be another run's.
    """
    ours = state_of(context)
    mine, ours.lease = ours.lease, None
    if mine is None:
        body.close()
        raise LeaseLost(f"{task.name}: its lease was given back before its body was awaited")
    outcome = Outcome.REQUEUED
    try:
        with holding(lease):
            result = await body
    except Retry:
        outcome = Outcome.RETRYING
        raise
    except (Ignore, Reject):
        raise
    except Exception:
        outcome = Outcome.REQUEUED if may_come_back(task) else Outcome.FAILED
        raise
    else:
        outcome = Outcome.FINISHED if ours.again is None else Outcome.RETRYING
        return result
    finally:
        _give_back(lease, ours, outcome)


_JOINED = (Reason.RUNNING, Reason.WINDOW, Reason.RESERVED)
"""Why a claim is refused by a run whose result is, or will be, there to take over."""


def _refused(
    runtime: Runtime, task: Task, policy: Policy, delivery: Delivery, request: Request, busy: Busy
) -> Any:
    tell = runtime.leases.tell
    step, carried = decide(runtime, task, policy, delivery, busy)
    match step:
        case Drop():
            tell(Kind.DROPPED, request, busy)
            return endings.drop()
        case Defer(delay):
            tell(Kind.DEFERRED, request, busy, delay=endings.countable(task, delay))
            deferrals = delivery.carried.deferrals
            if deferrals and deferrals % CROWD == 0:
                logger.warning(
                    "%s[%s] has been deferred %d times: many runs wait for %s",
                    task.name, task.request.id, deferrals, short_key(request.key),
                )  # fmt: skip
            try:
                return endings.defer(task, delivery.run_id, carried, delay)
            except StoreUnavailable:
                _leave_at_end(task, delivery, request, busy)  # it fails, and will not come back
                raise
        case Refuse():
            tell(Kind.REFUSED, request, busy)
            _leave_at_end(task, delivery, request, busy)
            raise Conflict(f"{task.name}: {busy}", busy)
        case Skip(gave_up):
            tell(Kind.GAVE_UP if gave_up else Kind.SKIPPED, request, busy)
            _leave_at_end(task, delivery, request, busy)
            ahead = message_id_of(busy.ahead)
            why = f"duplicate of run {printable(ahead)} ({busy.reason})"
            # Two publishes of one id share a result, and it is that of the one that runs.
            return endings.skip(task, policy, why, has_result=ahead != task.request.id)


def _leave_at_end(task: Task, delivery: Delivery, request: Request, busy: Busy) -> None:
    """Have the slot freed of a run that has one, or whose publisher is just about to ask for it.

    It is recorded as ended only once its end is stored: a copy must be able to do that again.
    """
    if delivery.carried.slot is not None or busy.waiting == delivery.run_id:
        state_of(task.request).refused = request.key, delivery


def decide(
    runtime: Runtime, task: Task, policy: Policy, delivery: Delivery, busy: Busy
) -> tuple[Step, Carried]:
    """Return what becomes of a refused run, and what it carries if it comes back."""
    carried, longest = delivery.carried, runtime.longest_deferral
    must_run = delivery.must_run or delivery.parent_id == message_id_of(busy.run_id)
    age = math.inf if busy.since is None else time.time() - busy.since
    waiter = Waiter(delivery.run_id, carried.deferrals, carried.waited, must_run, age, longest)
    step = next_step(busy, policy, waiter, random.random())  # noqa: S311 - spreads waiters
    joins = not (must_run or busy.resumed) and busy.reason in _JOINED and joining.joins(task, policy, carried)
    stops = isinstance(step, Skip | Refuse)
    # Its release follows its result at once. Where it does not, the result is an old one of the same id.
    ending = busy.reason is Reason.RUNNING and not carried.goes_first and (stops or joins)
    if ending and endings.is_known(task, message_id_of(busy.run_id)):
        step, joins = Defer(SHORTEST_DEFERRAL), False
    elif joins and busy.reason is not Reason.WINDOW and isinstance(step, Skip) and not step.gave_up:
        step = Defer(deferral(carried.deferrals, busy.retry_after, random.random(), longest))  # noqa: S311
    if isinstance(step, Defer) and state_of(task.request).eager:
        step = Skip()  # an eager run has no later
    met = busy.ahead if joins else None
    return step, carried.deferred(must_run=must_run or busy.resumed, joins=met)


def _without_store(
    runtime: Runtime,
    task: Task,
    policy: Policy,
    delivery: Delivery,
    request: Request,
    error: StoreUnavailable,
    body: Callable[[], Any],
    before: Callable[[], None],
) -> Any:
    """Do what ``on_store_error`` says; an outage is never taken for a conflict."""
    wanted, carried = "run" if runtime.enabled == "observe" else policy.on_store_error, delivery.carried
    if wanted in ("raise", "skip") and carried.slot == request.key:
        state_of(task.request).refused = request.key, delivery  # the store may be back by then
    if wanted == "raise" or (wanted == "defer" and state_of(task.request).eager):
        raise error  # an eager run has no later
    if wanted == "skip":
        return endings.skip(task, policy, f"the store was away: {error}")
    if wanted == "defer":
        waited, longest = max(OUTAGE, carried.deferrals), runtime.longest_deferral
        delay = deferral(waited, math.inf, random.random(), longest)  # noqa: S311
        endings.defer(task, delivery.run_id, carried.deferred(must_run=delivery.must_run), delay)
    runtime.leases.notify(
        Event(
            kind=Kind.UNGUARDED,
            task=task.name,
            key=short_key(request.key),
            run_id=task.request.id,
            token=delivery.token,
            reason=str(error),
        )
    )
    before()
    return body()


def mark_started(task: Task) -> None:
    """Store STARTED, as Celery's tracer does for tasks with ``track_started``."""
    request = task.request
    meta = {"pid": os.getpid(), "hostname": request.hostname}
    task.backend.store_result(request.id, meta, states.STARTED, request=request)
