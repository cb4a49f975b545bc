"""One task in each framework, and a message of it at a worker: through its own hooks, without threads."""

from __future__ import annotations

import queue
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

import dramatiq
from celery import Celery, states
from dramatiq.broker import MessageProxy
from dramatiq.brokers.stub import StubBroker
from dramatiq.common import dq_name
from dramatiq.middleware import MiddlewareError, SkipMessage
from dramatiq.results import Results
from dramatiq.results.backends.stub import StubBackend

from singleflight import Conflict, Singleton, Skipped, StoreUnavailable
from singleflight.celery import gate
from singleflight.celery import install as install_celery
from singleflight.celery.errors import Ended
from singleflight.dramatiq import SingletonActor
from singleflight.dramatiq import install as install_dramatiq
from singleflight.events import Notify
from singleflight.identity import message_id_of
from singleflight.leases.claiming import Leases
from singleflight.tasks.adapter import Raised, Returned
from singleflight.tasks.message import Carried
from tests.support.toy_framework import Message as ToyMessage
from tests.support.toy_framework import Toy

if TYPE_CHECKING:
    from singleflight.events import Event, Kind


@dataclass
class Fate:
    """What became of a message: ``how``, what its run returned or raised, what it carries to come back."""

    how: str
    value: Any = None
    carried: Carried = field(default_factory=Carried)


def failed(error: BaseException) -> Fate:
    """Return the fate of a run that has ended with an error."""
    kinds = (Skipped, "skipped"), (Conflict, "refused"), (StoreUnavailable, "unavailable")
    return Fate(next((how for kind, how in kinds if isinstance(error, kind)), "failed"), str(error))


class Case:
    """What the cases have in common: a run of a task without arguments, in a store."""

    def __init__(self, store: Any, *, observing: bool, **options: Any) -> None:
        self.run, self.bodies = uuid4().hex, 0
        self.events: list[Event] = []
        self.store, self.observing, self.options = store, observing, {"by": (), **options}
        self.declare()

    def body(self) -> str:
        """Be the task."""
        self.bodies += 1
        return "ran"

    def ended(self, value: Any) -> Fate:
        """Return the fate of a run that has returned a value: its own, or one that it took over."""
        return Fate("ran" if self.bodies else "answered", value)

    def told(self) -> list[Kind]:
        """Return what listeners have heard, less of leases that came and went."""
        return [event.kind for event in self.events if event.kind not in ("granted", "released", "took_over")]

    def declare(self) -> None:
        """Set up the framework, with the task ``work``."""
        raise NotImplementedError

    def deliver(self, carried: Carried, attempt: int, *, redelivered: bool) -> Fate:
        """Let the message arrive at a worker and work it off."""
        raise NotImplementedError

    def know(self, run_id: str, result: object) -> None:
        """Have the result of another run known; an exception is its failure."""
        raise NotImplementedError

    def lose_results(self) -> None:
        """Take the results' server away."""
        raise NotImplementedError


def away(*_: Any, **__: Any) -> NoReturn:
    """Be in the place of a question to a server that is away."""
    raise ConnectionError("no results")


class CeleryCase(Case):
    """A Celery task, on a broker in memory."""

    def declare(self) -> None:
        """See `Case.declare`."""
        self.app = Celery("case", broker="memory://", backend="cache+memory://", set_as_current=False)
        enabled = "observe" if self.observing else True
        install_celery(self.app, self.store, enabled=enabled, listeners=[self.events.append])

        def work() -> str:
            return self.body()

        self.app.task(shared=False, name="work", singleton=Singleton(**self.options))(work)
        self.task: Any = self.app.tasks["work"]

    def deliver(self, carried: Carried, attempt: int, *, redelivered: bool) -> Fate:
        """See `Case.deliver`."""
        self.task.push_request(
            id=self.run,
            args=(),
            kwargs={},
            retries=attempt,
            called_directly=False,
            delivery_info={"redelivered": redelivered},
            headers={},
            singleflight=carried.write(self.run, "work") or None,
        )
        state = states.IGNORED
        try:
            fate, state = self.ended(self.task()), states.SUCCESS
        except Ended as error:
            fate = self._later() or Fate(error.how)
        except Exception as error:  # noqa: BLE001 - whatever the run ends with is its fate
            fate, state = failed(error), states.FAILURE
        gate.release(self.task, self.run, state)
        self.task.pop_request()
        return fate

    def _later(self) -> Fate | None:
        with self.app.connection_for_read() as connection, suppress(queue.Empty):
            message = connection.SimpleQueue("celery", no_ack=True).get(block=False)
            assert message.headers["id"] == self.run
            return Fate("deferred", None, Carried.read(message.headers["singleflight"], self.run, "work"))
        return None

    def know(self, run_id: str, result: object) -> None:
        """See `Case.know`."""
        state = states.FAILURE if isinstance(result, Exception) else states.SUCCESS
        self.app.backend.store_result(message_id_of(run_id), result, state)

    def lose_results(self) -> None:
        """See `Case.lose_results`."""
        self.app.backend.get_task_meta = away


class DramatiqCase(Case):
    """A Dramatiq actor, on a stub broker."""

    def declare(self) -> None:
        """See `Case.declare`."""
        self.results = StubBackend()
        self.broker = StubBroker(middleware=[Results(backend=self.results, store_results=True)])
        enabled = "observe" if self.observing else True
        install_dramatiq(self.broker, self.store, enabled=enabled, listeners=[self.events.append])
        options: Any = {"actor_class": SingletonActor, "singleton": Singleton(**self.options)}
        self.actor = dramatiq.actor(broker=self.broker, actor_name="work", **options)(self.body)

    def deliver(self, carried: Carried, attempt: int, *, redelivered: bool) -> Fate:
        """See `Case.deliver`."""
        options = {"singleflight": carried.write(self.run, "work"), "retries": attempt}
        message = MessageProxy(self.actor.message().copy(message_id=self.run, options=options))
        message.redelivered = redelivered
        return copy_context().run(self._work_off, message)

    def _work_off(self, message: MessageProxy) -> Fate:
        try:
            self.broker.emit_before("process_message", message)
            result = self.actor()
        except SkipMessage as error:
            self.broker.emit_after("skip_message", message)
            fate = self._later() or Fate("dropped" if "late copy" in str(error) else "skipped", str(error))
        except MiddlewareError as error:
            message.stuff_exception(error)
            self.broker.emit_after("process_message", message, exception=error)
            fate = failed(error)
        else:
            self.broker.emit_after("process_message", message, result=result)
            fate = self.ended(result)
        end = "nack" if message.failed else "ack"
        self.broker.emit_before(end, message)
        self.broker.emit_after(end, message)
        return fate

    def _later(self) -> Fate | None:
        with suppress(queue.Empty):
            message = dramatiq.Message.decode(self.broker.queues[dq_name("default")].get_nowait())
            assert message.message_id == self.run
            return Fate("deferred", None, Carried.read(message.options["singleflight"], self.run, "work"))
        return None

    def know(self, run_id: str, result: object) -> None:
        """See `Case.know`."""
        message = self.actor.message().copy(message_id=message_id_of(run_id))
        if isinstance(result, Exception):
            self.results.store_exception(message, result, 60_000)
        else:
            self.results.store_result(message, result, 60_000)

    def lose_results(self) -> None:
        """See `Case.lose_results`."""
        self.results.get_result = away  # type: ignore[method-assign]


class ToyCase(Case):
    """A task of the framework that the documentation shows."""

    def declare(self) -> None:
        """See `Case.declare`."""
        self.toy = Toy(Leases(self.store, Notify([self.events.append])), observing=self.observing)

        def work() -> str:
            return self.body()

        self.toy.task(**self.options)(work)

    def deliver(self, carried: Carried, attempt: int, *, redelivered: bool) -> Fate:
        """See `Case.deliver`."""
        header = carried.write(self.run, "work")
        message = ToyMessage("work", (), self.run, header, attempt, redelivered)
        self.toy.process(message)
        result = self.toy.results.get(self.run)
        if isinstance(result, Returned):
            return self.ended(result.value)
        if isinstance(result, Raised):
            return failed(result.error)
        if message.header == header:
            return Fate("dropped")
        return Fate("deferred", None, Carried.read(message.header, self.run, "work"))

    def know(self, run_id: str, result: object) -> None:
        """See `Case.know`."""
        ending = Raised(result) if isinstance(result, Exception) else Returned(result)
        self.toy.results[message_id_of(run_id)] = ending

    def lose_results(self) -> None:
        """See `Case.lose_results`."""
        self.toy.results.clear()
