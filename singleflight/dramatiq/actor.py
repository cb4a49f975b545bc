"""The opt-in actor class that recognises a duplicate when it is sent: for ``at_most_one="waiting_..."``."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dramatiq import Actor, Message

from singleflight.dramatiq import errors, marks
from singleflight.dramatiq.delivery import carried_by, carry, write
from singleflight.dramatiq.occurrences import OPTION
from singleflight.identity import run_of
from singleflight.tasks.message import id_of

if TYPE_CHECKING:
    from singleflight.dramatiq.runtime import Runtime
    from singleflight.lease import Busy
    from singleflight.tasks.publishing import Place

P = ParamSpec("P")
R = TypeVar("R")

LINKS = ("pipe_target", "group_completion_uuid", "on_success", "on_failure", "retries", OPTION)
"""Options of messages that others depend on: they are always sent, and judged by the worker."""


class Duplicate(Message[R]):
    """What `send` returns instead of sending: the message that already waits or runs, under its own id.

    Its result can be awaited as that of any message; ``busy`` says who is in the way.
    """

    busy: Busy


class SingletonActor(Actor[P, R]):
    """An actor whose duplicates are recognised already when they are sent.

    Write ``@dramatiq.actor(actor_class=SingletonActor, singleton=Singleton(at_most_one=...))``. Only `send`
    and `send_with_options` look; messages in groups and pipelines are always sent, and judged by the worker.
    """

    singleflight: Runtime | None = None

    def send_with_options(
        self,
        *,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        delay: timedelta | int | None = None,
        **options: Any,
    ) -> Message[R]:
        """Send a message, or return the `Duplicate` that stands for the one in the way.

        Raises:
            ConfigurationError: for options that cannot be.
            Conflict: under ``on_conflict="raise"``, if another message waits or runs.
            StoreUnavailable: under ``on_store_error="raise"``, if the store does not answer.
        """
        message = self.message_with_options(args=args, kwargs=kwargs, **options)
        delay = round(delay.total_seconds() * 1000) if isinstance(delay, timedelta) else delay
        with errors.translated(self.actor_name):
            place = self._place(message)
            busy = place.in_the_way() if place else None
        if busy is not None:
            whole: dict[str, Any] = {**message.asdict(), "message_id": busy.run_id}
            duplicate: Duplicate[R] = Duplicate(**whole)
            object.__setattr__(duplicate, "busy", busy)
            return duplicate
        if place is None:
            return self.broker.enqueue(message, delay=delay)
        own = carried_by(message)
        marks.mark(message)
        carried = replace(carried_by(message), slot=place.key, must_run=bool(place.publisher))
        write(message, carried)
        with marks.unmarked.on():
            sent = self.broker.enqueue(message, delay=delay)
        # Only now: a place that was taken before its message exists would outlive a publisher that dies.
        place.take(run_of(id_of(message.message_id), carried.mark), (delay or 0) / 1000)
        write(sent, own)  # it may be sent again
        return sent

    def _place(self, message: Message[R]) -> Place | None:
        if self.singleflight is None:
            return None
        carry(message)
        judged_by_worker = any(message.options.get(link) is not None for link in LINKS)
        if judged_by_worker or self.options.get("occurrence"):
            return None
        return self.singleflight.place(self, message)
