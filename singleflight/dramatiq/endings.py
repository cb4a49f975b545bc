"""How a delivery ends that does not run: skipped, deferred or dropped, so that nobody waits in vain."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from dramatiq import Message
from dramatiq.errors import ActorNotFound
from dramatiq.middleware import GroupCallbacks, MiddlewareError

from singleflight.dramatiq import errors
from singleflight.dramatiq.delivery import write
from singleflight.dramatiq.gate import OURS, leave_at_end
from singleflight.dramatiq.joining import results_of
from singleflight.errors import Skipped as SkippedError
from singleflight.log import logger
from singleflight.tasks.adapter import Dropped, Later, Parked, Refused, Skipped, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dramatiq import Broker
    from dramatiq.broker import MessageProxy

    from singleflight.tasks.adapter import Ending
    from singleflight.tasks.message import Carried

LONGEST_PAUSE = 5.0
"""Seconds between two tries to hand a deferred message to a broker that is away."""


def end(broker: Broker, message: MessageProxy, fate: Ending) -> NoReturn:
    """Do what was decided about a message whose body does not run.

    Raises:
        Ended: Dramatiq is to acknowledge it.
        Conflict, StoreUnavailable: it fails, by its policy.
    """
    if not isinstance(fate, Dropped | Later | Parked):
        leave_at_end(message, fate.leaves)
    match fate:
        case Later(delay, carried):
            defer(broker, message, carried, delay)
        case Parked():
            _keep_result(message)
            raise errors.Ended("in line")
        case Skipped(why, has_result):
            skip(broker, message, why, has_result=has_result)
        case Refused(busy):
            raise errors.Conflict(f"{message.actor_name}: {busy}", busy)
        case Dropped():
            _keep_result(message)
            raise errors.Ended("a late copy of a run that has ended")
        case Unavailable(error):
            raise errors.StoreUnavailable(str(error)) from error


def defer(broker: Broker, message: MessageProxy, carried: Carried, delay: float) -> NoReturn:
    """Enqueue the same message again, to arrive ``delay`` seconds later, and end this delivery.

    Id, arguments, flow, count of retries and options stay: a deferral is no retry.
    While the broker is away this waits for it, as Dramatiq does with an acknowledgement: giving up would
    lose the message. If the process ends meanwhile, the broker delivers the message again.
    """
    copy = message.copy()
    write(copy, carried)
    copy.encode()  # an option that cannot travel is no outage: another middleware has put it there
    pause = 0.5
    while True:
        try:
            broker.enqueue(copy, delay=round(delay * 1000))
        except MiddlewareError:
            raise  # another middleware has refused the message: its word
        except Exception as error:  # noqa: BLE001 - brokers raise what their drivers raise
            logger.warning(
                "%s[%s] not deferred yet, the broker is away: %s",
                message.actor_name, message.message_id, error,
            )  # fmt: skip
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
        else:
            break
    _keep_result(message)
    raise errors.Ended(f"deferred by {delay:.1f} s")


def skip(broker: Broker, message: MessageProxy, why: str, *, has_result: bool) -> NoReturn:
    """End a run as a duplicate: it fails with `Skipped`, its pipeline stops, its group counts it.

    The failure is stored for all further stages of the pipeline too: whoever waits for one gets it. Without
    ``has_result`` it is for these only: the result under the message's id is another one's.
    """
    stages = list(_stages(message))
    for stage in stages if has_result else stages[1:]:
        _store_failure(broker, stage, SkippedError(f"{message.actor_name}: {why}"))
    _count_in_group(broker, stages[-1].options)
    _keep_result(message)
    raise errors.Ended(why)


def _keep_result(message: MessageProxy) -> None:
    """Keep Dramatiq from storing None as the result of a message that has not run, by our word.

    The options changed are those of this delivery only: a copy sent before has its own.
    """
    message.options["store_results"] = False
    setattr(message, OURS, True)


def _stages(message: Any) -> Iterator[Any]:
    """Yield a message and those that its pipeline would send after it."""
    yield message
    while (data := message.options.get("pipe_target")) is not None:
        message = Message(**data)
        yield message


def _store_failure(broker: Broker, message: Any, error: SkippedError) -> None:
    results = results_of(broker)
    if results is None:
        return
    try:
        declared = broker.get_actor(message.actor_name).options
    except ActorNotFound:  # it runs elsewhere
        declared = {}
    options = {
        "store_results": results.store_results,
        "result_ttl": results.result_ttl,
        **declared,
        **message.options,
    }
    if options["store_results"]:
        results.backend.store_exception(message, error, options["result_ttl"])


def _count_in_group(broker: Broker, options: dict[str, Any]) -> None:
    """Count a skipped member as done, because another message does its work: the group must complete."""
    for other in broker.middleware:
        if isinstance(other, GroupCallbacks):
            member = SimpleNamespace(options=options)
            other.after_process_message(broker, member)  # type: ignore[no-untyped-call]
