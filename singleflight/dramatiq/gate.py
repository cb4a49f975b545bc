"""The gate around an actor's body: what a claim has decided is what happens when Dramatiq calls it."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singleflight.api import holding
from singleflight.dramatiq.delivery import retries
from singleflight.lease import Lease, Outcome
from singleflight.tasks.decisions import SLOT_MARGIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from dramatiq.broker import MessageProxy

    from singleflight.leases.abort import Abort
    from singleflight.stores.base import Release
    from singleflight.tasks.adapter import Result


@dataclass(slots=True, eq=False)
class Granted:
    """A delivery that holds its lease, from the claim until it is acknowledged and its body is over."""

    lease: Lease
    message_id: str
    abort: Abort | None = None
    keeps_slot: bool = False
    """Its key has a waiting slot that its own retry must not lose."""
    again: float = 0.0
    """Seconds until the retry comes that has been sent."""
    entered: bool = False
    failed: bool = False
    cancelled: bool = False
    """Another middleware has skipped the message, and has not sent it on."""
    instead: Result | None = None
    """The result of the run that was joined, if that has ended meanwhile: its own must be stored first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _coroutine_runs: bool = False
    _ending: Callable[[], object] | None = None

    def run(self, body: Callable[[], Any]) -> Any:
        """Run the body under the lease."""
        self.entered = True
        if self.instead is not None:
            return self.instead.take()
        self.lease.began = True
        with holding(self.lease), self.abort.armed(self.lease) if self.abort else nullcontext():
            return body()

    @contextmanager
    def coroutine(self) -> Iterator[None]:
        """Surround the body of an async actor.

        Dramatiq waits for an interrupted coroutine for a second only, and acknowledges its message while
        it may still work. The lease is given back when both are over.
        """
        with self._lock:
            self._coroutine_runs = True
        try:
            yield
        finally:
            with self._lock:
                self._coroutine_runs = False
                ending = self._ending
            if ending is not None:
                ending()

    def give_back(self, message: MessageProxy) -> None:
        """Release the lease of a message that is about to be acknowledged or rejected."""
        outcome = self._outcome(message)
        again = self.again + SLOT_MARGIN if self.keeps_slot and outcome is Outcome.RETRYING else 0.0
        # The message goes along: once nobody has it any more, the keeper takes its lease for abandoned.
        release = functools.partial(_release, self.lease, outcome, again, message)
        _working.set(None)
        with self._lock:
            if self._coroutine_runs:
                self._ending = release
                return
        release()

    def _outcome(self, message: MessageProxy) -> Outcome:
        if message.failed:
            return Outcome.FAILED
        if retries(message) > self.lease.attempt:
            return Outcome.RETRYING
        if self.failed:
            return Outcome.FAILED
        if self.entered:
            return Outcome.FINISHED
        # Another middleware may have sent the message on instead of letting the body start.
        return Outcome.CANCELLED if self.cancelled else Outcome.REQUEUED


def _release(lease: Lease, outcome: Outcome, again: float, _message: MessageProxy) -> None:
    lease.release(outcome, again=again)


LEAVING = "singleflight_leaving"
"""The attribute under which a message proxy that ends without having run keeps what is to be recorded."""


OURS = "singleflight_ours"
"""The attribute that says that it was us who ended a message's delivery."""


def leave_at_end(message: MessageProxy, release: Release | None) -> None:
    """Have the end of a message that does not run recorded, once that end is stored."""
    if release is not None:
        setattr(message, LEAVING, release)


def take_leaving(message: MessageProxy) -> Release | None:
    """Return what is to be recorded of a message that has not run, once."""
    release: Release | None = message.__dict__.pop(LEAVING, None)
    return release


_sent: ContextVar[str | None] = ContextVar("singleflight_sent", default=None)


def note_sent(message_id: str | None) -> None:
    """Note which message this thread has sent last; None: its own message is over."""
    _sent.set(message_id)


def was_sent(message_id: str) -> bool:
    """Say whether this thread has just sent a message on: it comes back."""
    return _sent.get() == message_id


_working: ContextVar[Granted | None] = ContextVar("singleflight_working", default=None)


def working() -> Granted | None:
    """Return the grant of the message that this thread works on, until it is acknowledged."""
    return _working.get()


_ticket: ContextVar[Granted | Result | None] = ContextVar("singleflight_ticket", default=None)


def admit(ticket: Granted | Result | None) -> None:
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
        return ticket.run(lambda: body(*args, **kwargs)) if isinstance(ticket, Granted) else ticket.take()

    return gate


def watched(body: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let the grant of the message know when an async actor's coroutine is over."""

    @functools.wraps(body)
    async def watch(*args: Any, **kwargs: Any) -> Any:
        granted = working()  # Dramatiq hands the worker thread's context to the event loop
        with granted.coroutine() if granted is not None else nullcontext():
            return await body(*args, **kwargs)

    return watch
