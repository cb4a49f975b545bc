"""A Dramatiq message that will never start leaves its place: the next one is sent, and runs."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from dramatiq.broker import MessageProxy
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AgeLimit, Middleware, MiddlewareError, Retries, SkipMessage
from dramatiq.results import Results
from dramatiq.results.backends.stub import StubBackend

from singleflight import Singleton
from singleflight.dramatiq import Duplicate, SingletonActor, install
from singleflight.dramatiq.delivery import write
from singleflight.lease import Reason
from singleflight.stores.memory import MemoryStore
from singleflight.tasks.message import Carried

if TYPE_CHECKING:
    from dramatiq import Message

    from singleflight.stores.base import Record


class Hurdle(Middleware):
    """Skips messages, or sends them on to come again later, as limiters of rates and aborters do."""

    def before_process_message(self, broker: Any, message: MessageProxy) -> None:
        """Do as the message's option says."""
        how = message.options.pop("hurdle", None)
        if how == "sent on":
            broker.enqueue(message.copy())
        if how is not None:
            raise SkipMessage(how)


class Setting:
    """One actor on a stub broker, and a worker that works off one message at a time."""

    def __init__(self, place: str = "behind", **options: Any) -> None:
        self.store = MemoryStore()
        self.broker = StubBroker(middleware=[AgeLimit(), Retries()])
        self.broker.add_middleware(Results(backend=StubBackend(), store_results=True))
        install(self.broker, self.store)
        if place == "before":
            self.broker.add_middleware(Hurdle(), before=AgeLimit)
        else:
            self.broker.add_middleware(Hurdle())
        declare = dramatiq.actor(
            broker=self.broker,
            actor_class=SingletonActor,
            actor_name="work",
            singleton=Singleton(**{"at_most_one": "waiting_or_running", **options}),
        )
        self.actor = declare(lambda: None)

    def work_off(self) -> MessageProxy:
        """Do with the next message what a worker does."""
        message = MessageProxy(dramatiq.Message.decode(self.broker.queues["default"].get_nowait()))
        try:
            self.broker.emit_before("process_message", message)
            self.broker.emit_after("process_message", message, result=self.actor())
        except SkipMessage:
            self.broker.emit_after("skip_message", message)
        except MiddlewareError as error:
            message.stuff_exception(error)
            self.broker.emit_after("process_message", message, exception=error)
        end = "nack" if message.failed else "ack"
        self.broker.emit_before(end, message)
        self.broker.emit_after(end, message)
        return message

    def record(self) -> Record:
        """Return the one record that there is."""
        (key,) = self.store.scan("singleflight")
        look = self.store.peek(key)
        assert look is not None
        return look.record

    def asks_late(self, message: MessageProxy | Message[Any]) -> Reason | None:
        """Ask for the slot as a sender does that was slower than the worker."""
        (key,) = self.store.scan("singleflight")
        run = next(run.run_id for run in self.record().runs if run.run_id.startswith(message.message_id))
        busy = self.store.queue(key, run, ttl_ms=60_000, running_too=False)
        return busy and busy.reason


@pytest.mark.parametrize(
    ("place", "options"),
    [("before", {"hurdle": "aborted"}), ("behind", {"hurdle": "aborted"}), ("behind", {"max_age": 1})],
)
def test_a_message_that_others_end_leaves_its_place(place: str, options: dict[str, Any]) -> None:
    """Aborted before or behind us, or too old: the next one is no duplicate of it."""
    setting = Setting(place)
    first = setting.actor.message_with_options(**options)
    first = first.copy(message_timestamp=first.message_timestamp - 1000)
    place_ = setting.actor.singleflight.place(setting.actor, first)
    assert place_ is not None
    copy_context().run(setting.broker.enqueue, first)  # a sender is no worker's thread
    sent = dramatiq.Message.decode(setting.broker.queues["default"].queue[0])
    place_.take(f"{first.message_id}~{sent.options['singleflight']['mark']}", 0)
    assert isinstance(setting.actor.send(), Duplicate)

    setting.work_off()

    assert setting.record().slot == ""
    assert setting.asks_late(first) is Reason.FINISHED
    second = setting.actor.send()
    assert not isinstance(second, Duplicate)
    assert not setting.work_off().failed


@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_message_that_another_middleware_sends_on_runs_when_it_comes_again(place: str) -> None:
    """It is not over, so its end is not recorded."""
    setting = Setting(place)
    setting.actor.send_with_options(hurdle="sent on")
    setting.work_off()
    setting.work_off()

    assert [run.ended for run in setting.record().runs] == [True]
    assert setting.record().outcome == "finished"


@pytest.mark.parametrize("on_conflict", ["raise", "skip", "skip_result"])
def test_a_duplicate_that_a_worker_ends_before_its_sender_asks_gets_no_place(on_conflict: str) -> None:
    """Its sender would otherwise keep the slot for a message that is gone, for a minute."""
    options = {"skip_result": 1} if on_conflict == "skip_result" else {"on_conflict": on_conflict}
    setting = Setting(**options)
    holder, late = setting.actor.message(), setting.actor.message()
    for message in (holder, late):
        place = setting.actor.singleflight.place(setting.actor, message)
        write(message, Carried(slot=place.key))  # as the actor does, which has not asked for it yet
        setting.broker.enqueue(message)
    first = MessageProxy(dramatiq.Message.decode(setting.broker.queues["default"].get_nowait()))
    setting.broker.emit_before("process_message", first)
    setting.work_off()

    assert setting.asks_late(late) is Reason.FINISHED
    assert setting.record().run_id.startswith(holder.message_id)
    setting.broker.emit_after("process_message", first)
    setting.broker.emit_before("ack", first)


def test_a_copy_that_is_too_old_does_not_end_the_run_that_works(request: pytest.FixtureRequest) -> None:
    """Its message was delivered twice: the retry of the first delivery must not be taken for a late copy."""
    setting = Setting()
    setting.broker.enqueue(setting.actor.message())
    encoded = setting.broker.queues["default"].get_nowait()
    first = MessageProxy(dramatiq.Message.decode(encoded))
    setting.broker.emit_before("process_message", first)
    request.addfinalizer(lambda: setting.broker.emit_before("ack", first))
    copy = dramatiq.Message.decode(encoded)
    copy = copy.copy(options={"max_age": 1}, message_timestamp=copy.message_timestamp - 1000)
    setting.broker.queues["default"].put(copy.encode())
    setting.work_off()

    assert [run.ended for run in setting.record().runs] == [False]
