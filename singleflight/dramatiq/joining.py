"""``on_conflict="join"``: a duplicate takes over the result of the run it met, as soon as there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from dramatiq.results import ResultFailure, ResultMissing, Results

from singleflight.dramatiq.errors import JoinedFailure
from singleflight.dramatiq.gate import Answer
from singleflight.identity import message_id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dramatiq import Broker, Message
    from dramatiq.broker import MessageProxy


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of the run that was joined."""

    error: ResultFailure

    def run(self, _body: Callable[[], Any]) -> NoReturn:
        """Fail in the body's stead; it is not retried, because the other run has been."""
        raise JoinedFailure(f"{self.error.orig_exc_type}: {self.error.orig_exc_msg}")


def results_of(broker: Broker) -> Results | None:
    """Return the middleware that keeps results, if there is one."""
    return next((other for other in broker.middleware if isinstance(other, Results)), None)


def joined(broker: Broker, message: Message[Any] | MessageProxy, run_id: str) -> Answer | Failure | None:
    """Return the result of another run of a message's actor; None if there is none yet."""
    results = results_of(broker)
    if results is None:
        return None
    try:
        return Answer(results.backend.get_result(message.copy(message_id=message_id_of(run_id))))
    except ResultMissing:
        return None
    except ResultFailure as error:
        return Failure(error)


def is_known(broker: Broker, message: Message[Any] | MessageProxy, run_id: str) -> bool:
    """Return whether a run's result is out: its lease is released just after, so nobody is its duplicate.

    Who reads that result and sends again must not be told that the run is still in the way.
    """
    try:
        return joined(broker, message, run_id) is not None
    except Exception:  # noqa: BLE001 - results whose server does not answer: nobody has seen this one
        return False
