"""``on_conflict="join"``: a duplicate takes over the result of the run it met, as soon as there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dramatiq.results import ResultFailure, ResultMissing, Results

from singleflight.dramatiq.errors import JoinedFailure
from singleflight.identity import message_id_of
from singleflight.tasks.adapter import Raised, Returned

if TYPE_CHECKING:
    from dramatiq import Broker, Message
    from dramatiq.broker import MessageProxy

    from singleflight.tasks.adapter import Nothing, Result


def results_of(broker: Broker) -> Results | None:
    """Return the middleware that keeps results, if there is one."""
    return next((other for other in broker.middleware if isinstance(other, Results)), None)


def result_of(broker: Broker, message: Message[Any] | MessageProxy, run_id: str) -> Result | Nothing | None:
    """Return how another run of a message's actor has ended; None if its result is not there.

    Its lease is released just after, so nobody is its duplicate any more: who reads that result and sends
    again must not be told that the run is still in the way.
    """
    results = results_of(broker)
    if results is None:
        return None
    try:
        return Returned(results.backend.get_result(message.copy(message_id=message_id_of(run_id))))
    except ResultMissing:
        return None
    except ResultFailure as error:
        # Not retried, because the other run has been.
        return Raised(JoinedFailure(f"{error.orig_exc_type}: {error.orig_exc_msg}"))
    except Exception:  # noqa: BLE001 - results whose server does not answer: nobody has seen this one
        return None
