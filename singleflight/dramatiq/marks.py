"""Marks on messages: a new publish of an id is no copy of the one before; see `singleflight.identity`.

A message that is enqueued twice, or a pipeline that is run twice, has the same ids each time. Workers enqueue
messages too, on their way: retries, deferrals, and those whose delay is over. These stay what they are.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import current_thread
from typing import TYPE_CHECKING, Any

from dramatiq import worker

from singleflight.dramatiq import gate
from singleflight.dramatiq.delivery import carried_by, retries, write
from singleflight.dramatiq.occurrences import OPTION as OCCURRENCE
from singleflight.identity import Publisher, new_mark, run_of
from singleflight.switch import Switch
from singleflight.tasks.message import id_of

if TYPE_CHECKING:
    from dramatiq import Message
    from dramatiq.broker import MessageProxy

    AnyMessage = Message[Any] | MessageProxy


@dataclass(frozen=True, slots=True)
class _Processed:
    """The message that a worker's thread works on."""

    message_id: str
    attempt: int
    publisher: Publisher


_processed: ContextVar[_Processed | None] = ContextVar("singleflight_processed", default=None)
_marked: ContextVar[tuple[AnyMessage, str | None] | None] = ContextVar("singleflight_marked", default=None)
"""The message that was marked last, and the mark that it had before."""


unmarked = Switch("singleflight_unmarked")
"""Messages are enqueued as they are."""


def begin(message: MessageProxy) -> None:
    """Note which message this thread works on from now on."""
    attempt = retries(message)
    run_id = run_of(id_of(message.message_id), carried_by(message).mark)
    _processed.set(_Processed(message.message_id, attempt, Publisher(run_id, attempt)))


def end() -> None:
    """Note that this thread's message is about to be acknowledged or rejected."""
    _processed.set(None)


def mark(message: Message[Any]) -> bool:
    """Mark a message that is being published; False if it is one on its way."""
    processed = _processed.get()
    if _is_on_its_way(message, processed):
        return False
    _marked.set((message, carried_by(message).mark))
    _write(message, new_mark() if processed is None else processed.publisher.next_mark(message.message_id))
    return True


def forget(message: Message[Any]) -> None:
    """Take the mark off a message that has been published: the same object may be published again."""
    marked = _marked.get()
    if marked is not None and marked[0] is message:
        _marked.set(None)
        _write(message, marked[1])


def unmark(message: AnyMessage) -> None:
    """Take the mark off a message, likewise."""
    _write(message, None)


def _write(message: AnyMessage, mark: str | None) -> None:
    write(message, replace(carried_by(message), mark=mark))


def _is_on_its_way(message: Message[Any], processed: _Processed | None) -> bool:
    if message.options.get(OCCURRENCE) is not None or unmarked:
        return True
    if processed is None:
        # The only sign of a message whose delay is over.
        return isinstance(current_thread(), worker._ConsumerThread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if processed.message_id != message.message_id:
        return False
    granted = gate.working()
    by_body = granted is not None and granted.entered and retries(message) <= processed.attempt
    return not by_body
