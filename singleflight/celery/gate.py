"""The gate before a task's body: claim, then run under the lease, or end the delivery without running."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn

from celery import states
from celery.exceptions import Ignore, Reject, Retry

from singleflight.api import holding
from singleflight.celery import endings
from singleflight.celery.adapter import CeleryAdapter
from singleflight.celery.delivery import HEADER, may_come_back, read
from singleflight.celery.state import State, known_state, state_of
from singleflight.errors import ConfigurationError, Conflict, LeaseLost, StoreUnavailable
from singleflight.lease import Lease, Outcome
from singleflight.tasks.adapter import Answer, Dropped, Later, Parked, Refused, Run, Skipped, Unavailable
from singleflight.tasks.admission import Admission
from singleflight.tasks.decisions import SLOT_MARGIN
from singleflight.tasks.message import id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from singleflight.celery.runtime import Runtime
    from singleflight.tasks.adapter import Ending
    from singleflight.tasks.delivery import Delivery


def run(runtime: Runtime, task: Task, body: Callable[[], Any], before: Callable[[], None]) -> Any:
    """Run ``body`` under a lease, after ``before``; or end the delivery as its policy says.

    Raises:
        Ignore, Reject: Celery's own signs that a delivery is over.
        Conflict: if the policy is to raise.
        StoreUnavailable: if the store is away and the policy is to raise.
        ConfigurationError: if the store can never answer, or the message names options that cannot be.
    """
    context = task.request
    ours = state_of(context)
    arrival = ours.arrival
    if arrival is not None and (not isinstance(context.id, str) or id_of(context.id) != arrival.message_id):
        context.id = arrival.message_id  # Celery lets a message's body replace the id that it came with
    delivery = read(context.__dict__, task.name, arrival, eager=ours.eager)
    slot = delivery.carried.slot
    try:
        policy = runtime.policy(task, delivery)
        request = None if policy is None else runtime.request(task, policy, delivery)
    except ConfigurationError:
        if slot is not None and runtime.is_own(task, slot):
            ours.leaves = delivery.leaving(slot)
        raise
    if slot is not None and (request is None or request.key != slot) and runtime.is_own(task, slot):
        runtime.leave(delivery.leaving(slot))
    if policy is None or request is None:
        before()
        return body()
    adapter = CeleryAdapter(runtime, task, delivery.run_id)
    observing = runtime.enabled == "observe"
    fate = Admission(adapter, runtime.leases, policy, delivery, request, observing).decide()
    match fate:
        case Run():
            ours.keeps_slot = policy.at_publish
            return _under(fate, task, delivery, body, before)
        case Answer(result, lease, leaves):
            ours.lease, ours.leaves = lease, leaves
            return result.take()
        case _:
            return _end(fate, task, delivery)


def _end(fate: Ending, task: Task, delivery: Delivery) -> NoReturn:
    ours = state_of(task.request)
    ours.leaves = None if isinstance(fate, Dropped | Later | Parked) else fate.leaves
    match fate:
        case Later(delay, carried, leaves):
            try:
                endings.defer(task, delivery.run_id, carried, delay)
            except StoreUnavailable:
                ours.leaves = leaves  # it fails, and will not come back
                raise
        case Parked():
            endings.parked()
        case Skipped(why, has_result):
            endings.skip(task, why, has_result=has_result)
        case Refused(busy):
            raise Conflict(f"{task.name}: {busy}", busy)
        case Dropped():
            endings.drop()
        case Unavailable(error):
            raise error


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
    elif ours.leaves is not None:
        leaves, ours.leaves = ours.leaves, None
        ended = state in (states.SUCCESS, states.IGNORED) or (
            state == states.FAILURE and not may_come_back(task)
        )
        task.app.singleflight.leave(leaves, ended=ended)


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
    run: Run, task: Task, delivery: Delivery, body: Callable[[], Any], before: Callable[[], None]
) -> Any:
    context, lease = task.request, run.lease
    if lease is None:
        before()
        return body()
    state_of(context).lease = lease
    if run.carried is not None:
        header = run.carried.write(delivery.run_id, task.name)
        context.headers = {**(context.headers or {}), HEADER: header}
    before()
    lease.began = True
    with holding(lease), run.abort.armed(lease) if run.abort else nullcontext():
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


def mark_started(task: Task) -> None:
    """Store STARTED, as Celery's tracer does for tasks with ``track_started``."""
    request = task.request
    meta = {"pid": os.getpid(), "hostname": request.hostname}
    task.backend.store_result(request.id, meta, states.STARTED, request=request)
