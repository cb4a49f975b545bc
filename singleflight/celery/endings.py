"""How a delivery ends that does not run: skipped, deferred, dropped or refused, so that no flow hangs."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NoReturn

from celery import states
from celery.exceptions import Reject
from kombu.exceptions import OperationalError
from kombu.serialization import registry

from singleflight.celery import marks
from singleflight.celery.delivery import HEADER
from singleflight.celery.errors import DEFERRED, DROPPED, SKIPPED, Ended, Skipped
from singleflight.celery.line import BROKERS, has_quorum_queues, quorum_queue
from singleflight.celery.state import state_of
from singleflight.errors import StoreUnavailable

if TYPE_CHECKING:
    from celery import Task

    from singleflight.tasks.message import Carried

PUBLISH_TRIES = 5
"""How often a deferral of an early-acknowledged message is tried, with pauses of 1, 2, 4, 8 s between."""


def skip(task: Task, why: str, *, has_result: bool) -> NoReturn:
    """End a run as a duplicate: store REVOKED.

    That goes through ``mark_as_failure``, which tells chord and chain: nothing waits for ever. Without
    ``has_result`` it does only that: the result under the run's id is another one's.
    """
    request = task.request
    if not state_of(request).eager:
        task.backend.mark_as_failure(
            request.id,
            Skipped(why),
            request=request,
            store_result=has_result and not ignores_result(task),
            call_errbacks=False,
            state=states.REVOKED,
        )
    raise Ended(SKIPPED, why)


def drop() -> NoReturn:
    """End a late copy of a run that has ended: acknowledged, and nothing else is touched."""
    raise Ended(DROPPED)


def parked() -> NoReturn:
    """End a delivery whose message waits in the line."""
    raise Ended(DEFERRED, "in line")


def defer(task: Task, run_id: str, carried: Carried, delay: float) -> NoReturn:
    """Publish the same message again, to arrive ``delay`` seconds later, and end this delivery.

    ``carried`` is what the message says about its run when it comes back. Id, flow, stamps, headers, priority
    and the count of retries stay as they are: a deferral is no retry. If the broker does not take it, the
    message goes back to it, or the run fails visibly.
    """
    request = task.request
    for pause in [0.0, *(2.0**n for n in range(PUBLISH_TRIES - 1))]:
        time.sleep(pause)
        try:
            _publish_again(task, run_id, carried, delay)
        except OperationalError as error:
            if task.acks_late:
                raise Reject(f"could not be deferred: {error}", requeue=True) from error
            failure = error
        else:
            raise Ended(DEFERRED, f"again in {delay:.1f} s")
    raise StoreUnavailable(
        f"{task.name}[{request.id}] could not be deferred: the broker did not take it ({failure})"
    ) from failure


def _publish_again(task: Task, run_id: str, carried: Carried, delay: float) -> None:
    request = task.request
    headers = {name: value for name, value in (request.headers or {}).items() if not BROKERS.match(name)}
    headers[HEADER] = carried.write(run_id, task.name)
    options: dict[str, Any] = {"countdown": delay, "headers": headers}
    if has_quorum_queues(task):
        options.update(countdown=int(delay), queue=quorum_queue(task))
    arrival = state_of(request).arrival
    content_type = None if arrival is None else arrival.content_type
    if content_type in registry.type_to_name:
        options["serializer"] = registry.type_to_name[content_type]
    if "ignore_result" in request.__dict__:
        options["ignore_result"] = ignores_result(task)  # Celery before 5.7 would forget it
    signature = task.signature_from_request(request, **options)
    # send_task would otherwise make the run its own parent, and its own child.
    direct, request.called_directly = request.called_directly, True
    try:
        with marks.unmarked.on():
            signature.apply_async(add_to_parent=False)
    finally:
        request.called_directly = direct


def countable(task: Task, delay: float) -> float:
    """Return a delay as the broker counts it: RabbitMQ's own are of whole seconds."""
    return float(math.ceil(delay)) if has_quorum_queues(task) else delay


def ignores_result(task: Task) -> bool:
    """Say whether a run's result is ignored: by its message, else by its task."""
    said = task.request.__dict__.get("ignore_result")
    return bool(task.ignore_result if said is None else said)
