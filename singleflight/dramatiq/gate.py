"""The gate around an actor's body: what a claim has decided is what happens when Dramatiq calls it."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from singleflight.decisions import SLOT_MARGIN
from singleflight.dramatiq.delivery import retries
from singleflight.flight import holding
from singleflight.lease import Lease, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from dramatiq.broker import MessageProxy

    from singleflight.dramatiq.abort import Abort


class Ticket(Protocol):
    """What a delivery needs to pass the gate."""

    def run(self, body: Callable[[], Any]) -> Any:
        """Run the body, or do something in its stead."""
        ...


@dataclass(slots=True, eq=False)
class Granted:
    """A delivery that holds its lease, from the claim to the acknowledgement."""

    lease: Lease
    message_id: str
    abort: Abort | None
    keeps_slot: bool
    """Its key has a waiting slot that its own retry must not lose."""
    again: float = 0.0
    """Seconds until the retry comes that has been sent."""
    entered: bool = False
    failed: bool = False

    def run(self, body: Callable[[], Any]) -> Any:
        """Run the body under the lease."""
        self.entered = self.lease.began = True
        with holding(self.lease), self.abort.armed(self.lease) if self.abort else nullcontext():
            return body()

    def give_back(self, message: MessageProxy) -> None:
        """Release the lease of a message that is about to be acknowledged or rejected."""
        outcome = self._outcome(message)
        keeps = self.keeps_slot and outcome is Outcome.RETRYING
        self.lease.release(outcome, again=self.again + SLOT_MARGIN if keeps else 0.0)
        _working.set(None)

    def _outcome(self, message: MessageProxy) -> Outcome:
        if message.failed:
            return Outcome.FAILED
        if retries(message) > self.lease.attempt:
            return Outcome.RETRYING
        if self.failed:
            return Outcome.FAILED
        # Another middleware may have sent a copy instead of letting the body start.
        return Outcome.FINISHED if self.entered else Outcome.REQUEUED


@dataclass(frozen=True, slots=True)
class Answer:
    """A skipped run's own result: the body is not called, all else goes on as if it had returned this."""

    result: object

    def run(self, _body: Callable[[], Any]) -> object:
        """Return the result in the body's stead."""
        return self.result


_working: ContextVar[Granted | None] = ContextVar("singleflight_working", default=None)


def working() -> Granted | None:
    """Return the grant of the message that this thread works on, until it is acknowledged."""
    return _working.get()


_ticket: ContextVar[Ticket | None] = ContextVar("singleflight_ticket", default=None)


def admit(ticket: Ticket | None) -> None:
    """Decide what this thread's next call of a gated function meets; None: it just runs."""
    _ticket.set(ticket)
    if isinstance(ticket, Granted):
        _working.set(ticket)


def gated(body: Callable[..., Any]) -> Callable[..., Any]:
    """Put the gate around an actor's function; direct calls, also from inside a run, just run."""

    @functools.wraps(body)
    def gate(*args: Any, **kwargs: Any) -> Any:
        ticket = _ticket.get()
        if ticket is None:
            return body(*args, **kwargs)
        _ticket.set(None)
        return ticket.run(lambda: body(*args, **kwargs))

    return gate
