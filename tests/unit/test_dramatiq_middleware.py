"""The Dramatiq middleware on a stub broker, without any server: what is refused, what each policy does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import (
    AgeLimit,
    Callbacks,
    CurrentMessage,
    MiddlewareError,
    Pipelines,
    Retries,
    ShutdownNotifications,
    SkipMessage,
    TimeLimit,
)
from dramatiq.results import ResultFailure, ResultMissing, Results
from dramatiq.results.backends.stub import StubBackend

from singleflight import Event, Kind, Singleton, StoreUnavailable, current_lease
from singleflight.dramatiq import ConfigurationError, Conflict, Singleflight, SingletonActor, install
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEFAULTS = (AgeLimit, TimeLimit, ShutdownNotifications, Callbacks, Pipelines, Retries)


class AwayStore(MemoryStore):
    """A store that can be away."""

    away = True

    def claim(self, *args: Any) -> Any:
        """Answer, or not."""
        if self.away:
            raise StoreUnavailable("the store is away")
        return super().claim(*args)


class BrokenStore(MemoryStore):
    """A store with a bug."""

    def claim(self, *_: Any) -> Any:
        """Fail as nobody expects."""
        raise ZeroDivisionError("a bug")


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    """Return a stub broker with the default middleware, less the part of Dramatiq 1 that wants a server."""
    broker = StubBroker(middleware=[middleware() for middleware in DEFAULTS])
    broker.add_middleware(CurrentMessage())
    broker.add_middleware(Results(backend=StubBackend(), store_results=True))
    yield broker
    broker.flush_all()


@pytest.fixture
def work(broker: StubBroker) -> Iterator[Callable[[], None]]:
    """Return a function that works off all messages and stops the worker."""
    workers = []

    def work() -> None:
        worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
        workers.append(worker)
        worker.start()
        broker.join("default", fail_fast=False, timeout=15_000)
        worker.join()

    yield work
    for worker in workers:
        worker.stop(timeout=5_000)


def test_a_duplicate_is_skipped_without_any_store_named(broker: StubBroker, work: Callable[[], None]) -> None:
    """On a stub broker leases live in memory: of three messages the one that meets another is skipped."""
    install(broker)
    runs = []

    @dramatiq.actor(broker=broker, singleton=Singleton(on_conflict="skip", window=60))
    def once() -> str:
        lease = current_lease()
        assert lease is not None
        runs.append(lease.fence)
        return "ran"

    messages = [once.send() for _ in range(3)]
    work()

    endings = []
    for message in messages:
        try:
            endings.append(message.get_result(backend=broker.get_results_backend()))
        except ResultFailure as error:
            endings.append(error.orig_exc_type)
    assert len(runs) == 1
    assert sorted(endings) == ["Skipped", "Skipped", "ran"]


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("yes", "singleton='yes' is not an option; write singleton=True"),
        (Singleton(by="nobody"), "by='nobody' names no parameter"),
        (Singleton(on_conflict="join"), "join' without `by` would hand the result"),
        (Singleton(on_conflict="join", by="*", name="shared"), "another actor's result"),
        (Singleton(on_conflict="raise", skip_result=1), "has no meaning"),
        (Singleton(max_hold=1, ttl=5), "max_hold=1.0 is shorter than ttl"),
    ],
)
def test_what_cannot_be_is_refused_at_declaration(broker: StubBroker, option: Any, remedy: str) -> None:
    """A wrong option raises where the actor is declared, names the actor, and the actor is not there."""
    install(broker)
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        dramatiq.actor(broker=broker, actor_name="wrong", singleton=option)(lambda key: key)

    assert "actor wrong" in str(caught.value)
    assert "wrong" not in broker.actors


def test_a_join_without_results_is_refused() -> None:
    """A result that nobody keeps cannot be taken over."""
    broker = StubBroker(middleware=[])
    install(broker)

    with pytest.raises(ConfigurationError, match="put Dramatiq's Results middleware"):
        dramatiq.actor(broker=broker, actor_name="a", singleton=Singleton(on_conflict="join"))(lambda: 1)


def test_an_actor_that_takes_arguments_and_no_by_warns(broker: StubBroker) -> None:
    """Distinct work would be skipped, so the declaration says what to write."""
    install(broker)

    with pytest.warns(UserWarning, match="by='account_id' or by"):
        dramatiq.actor(broker=broker, actor_name="taker", singleton=True)(lambda account_id: account_id)


def test_the_option_without_the_middleware_is_unknown(broker: StubBroker) -> None:
    """Without the middleware Dramatiq itself refuses the option by name."""
    with pytest.raises(ValueError, match="singleton"):
        dramatiq.actor(broker=broker, actor_name="early", singleton=True)(lambda: None)


@pytest.mark.parametrize("value", ["maybe", 2])
def test_wrong_settings_are_refused(value: Any) -> None:
    """The middleware refuses settings that it does not know, naming them."""
    with pytest.raises(ValueError, match="enabled"):
        Singleflight(enabled=value)
    with pytest.raises(ValueError, match="defaults"):
        Singleflight(defaults=value)
    with pytest.raises(ValueError, match="defaults"):
        Singleflight(defaults={"tll": 3})


def test_install_places_the_middleware_behind_the_age_limit(broker: StubBroker) -> None:
    """Expired messages take no lease, and nothing interrupts a claim."""
    middleware = install(broker)

    assert broker.middleware.index(middleware) == 1
    assert isinstance(broker.middleware[0], AgeLimit)


@pytest.mark.parametrize("others", [[], [TimeLimit, Retries], [Retries, AgeLimit, TimeLimit]])
def test_install_finds_a_place_among_any_middleware(others: list[Any]) -> None:
    """A broker whose middleware somebody has chosen boots too."""
    broker = StubBroker(middleware=[middleware() for middleware in others])
    install(broker)
    worker = dramatiq.Worker(broker, worker_threads=1)

    worker.start()

    worker.stop(timeout=5_000)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ({}, "stands after TimeLimit"),
        ({"before": AgeLimit}, "stands before AgeLimit"),
        ({"after": ShutdownNotifications}, "stands after TimeLimit"),
    ],
)
def test_a_worker_with_a_wrong_order_does_not_boot(
    broker: StubBroker, place: dict[str, Any], problem: str
) -> None:
    """The order is checked before the first message, with the remedy."""
    broker.add_middleware(Singleflight(), **place)
    worker = dramatiq.Worker(broker, worker_threads=1)

    with pytest.raises(ConfigurationError, match=f"{problem}.*install"):
        worker.start()


def test_two_middlewares_are_refused(broker: StubBroker) -> None:
    """Each would ask for a lease of its own, and the second would wait for the first."""
    install(broker)
    install(broker)

    with pytest.raises(ConfigurationError, match="twice"):
        dramatiq.Worker(broker, worker_threads=1).start()


def test_a_wrong_option_of_one_message_is_refused_by_send(broker: StubBroker) -> None:
    """What cannot travel, or cannot be, raises in the caller, and nothing is sent."""
    install(broker)
    actor = dramatiq.actor(broker=broker, actor_name="sent", singleton=True)(lambda: None)

    with pytest.raises(ConfigurationError, match="cannot travel in a message"):
        actor.send_with_options(singleton=Singleton(by=lambda: 1))

    assert broker.queues["default"].qsize() == 0


def test_no_lease_for_an_actor_that_is_no_singleton(broker: StubBroker, work: Callable[[], None]) -> None:
    """Actors without the option are left alone, also by a store that is away."""
    install(broker, AwayStore())
    runs = []

    def plain() -> None:
        runs.append(current_lease())

    actor = dramatiq.actor(broker=broker, actor_name="plain")(plain)
    actor.send()
    work()

    assert runs == [None]
    assert actor.fn is plain


def test_arguments_that_do_not_fit_fail_as_ever(broker: StubBroker, work: Callable[[], None]) -> None:
    """No lease is taken for a call that cannot be; it raises its own TypeError."""
    install(broker, AwayStore())
    actor = dramatiq.actor(broker=broker, actor_name="strict", singleton=Singleton(by="key"), max_retries=0)(
        lambda key: key
    )
    message = actor.send("a", "b")
    work()

    with pytest.raises(ResultFailure, match="TypeError"):
        message.get_result(backend=broker.get_results_backend())


def test_a_store_that_is_away_lets_actors_run_only_if_told_to(
    broker: StubBroker, work: Callable[[], None]
) -> None:
    """Under on_store_error="run" the actor runs, without a lease, and a listener hears of it."""
    events: list[Event] = []
    install(broker, AwayStore(), listeners=[events.append])
    runs = []
    actor = dramatiq.actor(broker=broker, actor_name="eager", singleton=Singleton(on_store_error="run"))(
        lambda: runs.append(current_lease())
    )
    actor.send()
    work()

    assert runs == [None]
    assert Kind.UNGUARDED in [event.kind for event in events]


@pytest.mark.parametrize(
    ("word", "ending", "dead"), [("raise", "StoreUnavailable", 1), ("skip", "Skipped", 0)]
)
def test_a_store_that_is_away_ends_the_message_as_the_policy_says(
    broker: StubBroker, work: Callable[[], None], word: Any, ending: str, dead: int
) -> None:
    """Under raise it fails at once, without retries; under skip it is skipped; in neither case it runs."""
    install(broker, AwayStore())
    runs: list[int] = []
    actor = dramatiq.actor(broker=broker, actor_name="away", singleton=Singleton(on_store_error=word))(
        lambda: runs.append(1)
    )
    message = actor.send()
    work()

    with pytest.raises(ResultFailure) as caught:
        message.get_result(backend=broker.get_results_backend())
    assert caught.value.orig_exc_type == ending
    assert len(broker.dead_letters) == dead
    assert not runs


def test_a_store_that_is_away_defers_the_message_and_counts_no_retry(broker: StubBroker) -> None:
    """The built-in word: the message is sent again with a delay, its result stays open, nothing runs."""
    install(broker, AwayStore())
    runs: list[int] = []
    actor = dramatiq.actor(broker=broker, actor_name="patient", singleton=True)(lambda: runs.append(1))
    message = actor.send()
    proxy = dramatiq.broker.MessageProxy(message)
    with pytest.raises(SkipMessage, match="deferred"):
        broker.emit_before("process_message", proxy)
    broker.emit_after("skip_message", proxy)

    copy = dramatiq.Message.decode(broker.queues["default.DQ"].get_nowait())
    assert copy.message_id == message.message_id
    assert copy.message_timestamp == message.message_timestamp
    assert "retries" not in copy.options
    assert copy.options["singleflight"]["deferrals"] == 1
    with pytest.raises(ResultMissing):
        message.get_result(backend=broker.get_results_backend())
    assert not runs


def test_a_deferral_outlasts_a_broker_that_is_away() -> None:
    """Dramatiq would swallow the failure and acknowledge the message, so this is tried until it works."""

    class Flaky(StubBroker):
        failures = 1

        def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
            if delay and self.failures:
                self.failures -= 1
                raise ConnectionError("the broker is away")
            return super().enqueue(message, delay=delay)

    broker = Flaky(middleware=[])
    install(broker, AwayStore())
    actor = dramatiq.actor(broker=broker, actor_name="patient", singleton=True)(lambda: None)

    with pytest.raises(SkipMessage, match="deferred"):
        broker.emit_before("process_message", dramatiq.broker.MessageProxy(actor.message()))

    assert broker.failures == 0
    assert broker.queues["default.DQ"].qsize() == 1


def test_a_deferral_that_cannot_travel_fails_instead_of_waiting_for_the_broker() -> None:
    """What another middleware has put into the options, and JSON has not, is no outage of the broker."""
    broker = StubBroker(middleware=[])
    install(broker, AwayStore())
    actor = dramatiq.actor(broker=broker, actor_name="stamped", singleton=True)(lambda: None)
    message = dramatiq.broker.MessageProxy(actor.message())
    message.options["began"] = object()

    with pytest.raises(MiddlewareError, match="not JSON serializable"):
        broker.emit_before("process_message", message)
    assert not broker.queues["default.DQ"].qsize()


def test_arguments_that_cannot_travel_fail_as_ever(broker: StubBroker) -> None:
    """An actor that looks when it sends raises what Dramatiq itself does."""
    install(broker, MemoryStore())
    options = Singleton(by="_thing", at_most_one="waiting_or_running")
    actor = dramatiq.actor(
        broker=broker, actor_class=SingletonActor, actor_name="looking", singleton=options
    )(lambda _thing: None)

    with pytest.raises(TypeError, match="not JSON serializable"):
        actor.send(object())


def test_a_claim_that_fails_as_nobody_expects_does_not_run_the_actor(broker: StubBroker) -> None:
    """Dramatiq would swallow a plain exception and run the actor without a lease."""
    install(broker, BrokenStore())
    actor = dramatiq.actor(broker=broker, actor_name="buggy", singleton=True)(lambda: None)
    proxy = dramatiq.broker.MessageProxy(actor.message())

    with pytest.raises(MiddlewareError, match="ZeroDivisionError"):
        broker.emit_before("process_message", proxy)


def test_in_observation_everything_runs_and_conflicts_are_told(
    broker: StubBroker, work: Callable[[], None]
) -> None:
    """enabled="observe" is the safe way to roll out: two runs, one of them would have been skipped."""
    events: list[Event] = []
    install(broker, enabled="observe", listeners=[events.append])
    runs: list[int] = []
    actor = dramatiq.actor(broker=broker, actor_name="seen", singleton=Singleton(window=60))(
        lambda: runs.append(1)
    )
    actor.send()
    actor.send()
    work()

    assert len(runs) == 2
    assert [event.kind for event in events].count(Kind.OBSERVED) == 1


def test_switched_off_nothing_is_claimed(broker: StubBroker, work: Callable[[], None]) -> None:
    """enabled=False asks no store at all."""
    install(broker, BrokenStore(), enabled=False)
    runs: list[int] = []
    actor = dramatiq.actor(broker=broker, actor_name="off", singleton=True)(lambda: runs.append(1))
    actor.send()
    work()

    assert runs == [1]


def test_a_message_that_another_middleware_skips_gives_its_window_back(broker: StubBroker) -> None:
    """If the body never starts, the lease goes back as if it had not been taken."""

    class Veto(dramatiq.Middleware):
        veto, seen = True, 0

        def before_process_message(self, *_: Any) -> None:
            self.seen += 1
            if self.veto:
                raise SkipMessage("not now")

    store = MemoryStore()
    install(broker, store)
    broker.add_middleware(veto := Veto())
    actor = dramatiq.actor(broker=broker, actor_name="vetoed", singleton=Singleton(window=60))(lambda: None)
    first, second = (dramatiq.broker.MessageProxy(actor.message()) for _ in range(2))
    with pytest.raises(SkipMessage, match="not now"):
        broker.emit_before("process_message", first)
    broker.emit_after("skip_message", first)
    broker.emit_before("ack", first)
    veto.veto = False

    broker.emit_before("process_message", second)

    assert veto.seen == 2
    broker.emit_after("process_message", second)
    broker.emit_before("ack", second)


def test_a_direct_call_takes_no_lease(broker: StubBroker) -> None:
    """Calling an actor as a function runs it, as Dramatiq's tests do, also while a lease is held."""
    install(broker, AwayStore())
    actor = dramatiq.actor(broker=broker, actor_name="direct", singleton=True)(current_lease)

    assert actor() is None


def test_a_message_that_nobody_here_knows_is_rejected_as_it_was_sent(
    broker: StubBroker, work: Callable[[], None]
) -> None:
    """It travels with a mark, for its actor may be a singleton elsewhere; its dead letter has none."""
    install(broker)
    broker.declare_queue("default")
    message = dramatiq.Message(queue_name="default", actor_name="elsewhere", args=(), kwargs={}, options={})

    broker.enqueue(message)
    (queued,) = broker.queues["default"].queue
    work()

    assert "singleflight" in dramatiq.Message.decode(queued).options
    assert broker.dead_letters == [message]


def test_options_inside_a_pipeline_travel_too(broker: StubBroker) -> None:
    """A later stage's singleton= is written so that it can be encoded with the first message."""
    install(broker)
    actor = dramatiq.actor(broker=broker, actor_name="stage", singleton=False)(lambda *_: None)
    later = actor.message_with_options(singleton=Singleton(ttl=3))
    dramatiq.pipeline([actor.message(), later], broker=broker).run()

    sent = dramatiq.Message.decode(broker.queues["default"].get_nowait())
    carried = {"for": [later.message_id, "stage"], "options": {"ttl": 3.0}}
    assert sent.options["pipe_target"]["options"]["singleflight"] == carried


def test_conflict_is_an_error_that_dramatiq_does_not_swallow() -> None:
    """In a before-hook only Dramatiq's own kind of error keeps an actor from running."""
    assert issubclass(Conflict, MiddlewareError)
