"""A whole framework: a queue of messages, a thread that works them off, and results in a dictionary."""

from __future__ import annotations

import queue
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from singleflight import Conflict, Outcome, Singleton, Skipped
from singleflight.identity import message_id_of
from singleflight.key_rules import rule_of
from singleflight.leases.claiming import Leases, new_token
from singleflight.policy import resolve
from singleflight.tasks import adapter
from singleflight.tasks.adapter import Adapter, Answer, Dropped, Later, Raised, Refused, Result, Returned, Run
from singleflight.tasks.admission import Admission
from singleflight.tasks.delivery import Delivery
from singleflight.tasks.message import Carried
from singleflight.tasks.publishing import Slots, leave

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.lease import Lease
    from singleflight.stores.base import Release


@dataclass(eq=False)
class Message:
    """What travels. ``header`` is ours: it says how often the run was deferred, and what it waits for."""

    task: str
    args: tuple[Any, ...] = ()
    id: str = field(default_factory=lambda: uuid4().hex)
    header: object = None
    attempt: int = 0
    redelivered: bool = False


class ToyAdapter(Adapter):
    """What admission asks of this framework; all else is as in most."""

    def __init__(self, toy: Toy, message: Message) -> None:
        self.toy, self.message = toy, message

    @property
    def owner(self) -> Callable[[], object]:
        """Return what says whether the message is still being worked on."""
        return weakref.ref(self.message)

    def result_of(self, run_id: str) -> Result | None:
        """Return how another run has ended."""
        return self.toy.results.get(message_id_of(run_id))


class Toy:
    """The framework; ``leases`` are in the store that all workers share."""

    def __init__(self, leases: Leases, *, observing: bool = False) -> None:
        self.leases, self.observing = leases, observing
        self.tasks: dict[str, tuple[Callable[..., Any], Any, Any]] = {}
        self.queue: queue.Queue[Message | None] = queue.Queue()
        self.results: dict[str, Result] = {}

    def task(self, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare a task with the options of `Singleton`."""

        def declare(body: Callable[..., Any]) -> Callable[..., Any]:
            policy = resolve(None, Singleton(**options))
            rule = rule_of(
                "singleflight", body.__name__, body, policy.by, policy.name, by_given=policy.by_given
            )
            self.tasks[body.__name__] = body, policy, rule
            return body

        return declare

    def send(self, task: str, *args: Any) -> str:
        """Publish a call and return its run's id."""
        message = Message(task, args)
        self.queue.put(message)
        return message.id

    def work(self) -> None:
        """Do what a worker's thread does, until it gets None."""
        while (message := self.queue.get()) is not None:
            self.process(message)

    def process(self, message: Message) -> None:
        """Do with one message what admission says."""
        body, policy, rule = self.tasks[message.task]
        carried = Carried.read(message.header, message.id, message.task)
        delivery = Delivery(
            message.id, message.attempt, new_token(), message.args, {}, carried, message.redelivered
        )
        request = delivery.request(rule, policy, observing=self.observing)
        assert request is not None, "the arguments do not fit"
        asked = ToyAdapter(self, message)
        match Admission(asked, self.leases, policy, delivery, request, self.observing).decide():
            case Run(lease):
                if lease is not None:
                    lease.began = True
                self.end(message, outcome_of(body, message.args), lease)
            case Answer(result, lease, leaves):
                self.end(message, result, lease, leaves)
            case Later(delay, carries):
                message.header = carries.write(message.id, message.task)
                threading.Timer(delay, self.queue.put, [message]).start()
            case Refused(busy, leaves):
                self.end(message, Raised(Conflict(str(busy), busy)), leaves=leaves)
            case adapter.Skipped(why, has_result, leaves):
                self.end(message, Raised(Skipped(why)) if has_result else None, leaves=leaves)
            case adapter.Unavailable(error, leaves):
                self.end(message, Raised(error), leaves=leaves)
            case Dropped():
                pass

    def end(
        self,
        message: Message,
        result: Result | None,
        lease: Lease | None = None,
        leaves: Release | None = None,
    ) -> None:
        """Store a result, and only then give back what the run had."""
        if result is not None:
            self.results[message.id] = result
        if lease is not None:
            lease.release(Outcome.FINISHED if isinstance(result, Returned) else Outcome.FAILED)
        if leaves is not None:
            leave(Slots(self.leases.store, self.leases.notify, self.leases.breaker), leaves, ended=True)


def outcome_of(body: Callable[..., Any], args: tuple[Any, ...]) -> Result:
    """Call a body and return how it ended."""
    try:
        return Returned(body(*args))
    except Exception as error:  # noqa: BLE001 - a body may raise anything
        return Raised(error)
