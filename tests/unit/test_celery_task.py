"""What a caller gets: a task's own overrides are called as Celery calls them, and results are of one kind."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from celery import Celery, Task, chain, chord, signature
from celery.contrib.abortable import AbortableAsyncResult, AbortableTask
from celery.result import AsyncResult, EagerResult
from celery.worker import state
from celery.worker.control import Panel
from kombu.utils.json import loads

from singleflight import ConfigurationError, Conflict, Singleton
from singleflight.celery import install
from singleflight.celery.delivery import HEADER
from singleflight.celery.results import SingletonResult
from singleflight.celery.revoking import watch_revocations
from singleflight.celery.state import state_of
from singleflight.lease import Reason
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUEUE = "callers"
"""Memory is shared by all tests of a process, so this file has a queue of its own."""

ONCE = Singleton(by="key", at_most_one="waiting_or_running")


@pytest.fixture
def app() -> Iterator[Celery]:
    """Return an app that publishes to memory and keeps results there; each test has queues of its own."""
    app = Celery("callers", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = QUEUE
    yield app
    with app.connection_for_write() as connection:
        connection.default_channel.queue_purge(QUEUE)
    app.close()


def sent(app: Celery, accept: str = "json") -> list[Any]:
    """Take all messages that were published."""
    messages = []
    with app.connection_for_read() as connection, connection.SimpleQueue(QUEUE, accept=[accept]) as queue:
        while queue.qsize():
            messages.append(queue.get(timeout=1))
            messages[-1].ack()
    return messages


def body_of(key: str = "key") -> str:
    """Return its argument."""
    return key


class OptionsOnly(Task):  # type: ignore[misc]
    """A base class that overrides `apply_async` as many do: what is given besides is given by name."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with a priority."""
        return super().apply_async(args, kwargs, **{**options, "priority": 3})


class Anything(Task):  # type: ignore[misc]
    """A base class whose override takes whatever comes."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Publish."""
        return super().apply_async(*args, **options)


class OnCommit(Task):  # type: ignore[misc]
    """A base class that publishes when a transaction is committed, and has nothing to return before."""

    abstract = True
    commit: Callable[[], Any]

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish later."""
        OnCommit.commit = lambda: super(OnCommit, self).apply_async(args, kwargs, **options)


class Renaming(Task):  # type: ignore[misc]
    """A base class that chooses the ids of its runs."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish under another id."""
        options["task_id"] = "chosen-by-the-override"
        return super().apply_async(args, kwargs, **options)


@pytest.mark.parametrize("base", [OptionsOnly, Anything, Renaming])
@pytest.mark.parametrize("options", [Singleton(by="key"), ONCE], ids=["running", "waiting"])
@pytest.mark.parametrize("eager", [False, True], ids=["sent", "eager"])
def test_an_override_of_apply_async_is_called_as_celery_calls_it(
    app: Celery, base: type[Task], options: Singleton, eager: bool
) -> None:
    """`delay`, positional arguments, options, `link` and signatures all reach it, and none of them raises."""
    install(app, MemoryStore())
    app.conf.task_always_eager = eager
    task = app.task(shared=False, name="own", base=base, singleton=options)(body_of)

    results = [
        task.delay("a"),
        task.delay(key="b"),
        task.apply_async(("c",), countdown=5),
        task.apply_async(("d",), {}, "an-id"),
        task.apply_async(("e",), link=task.si("linked")),
        task.s("f").apply_async(),
        task.s("g").set(priority=1).delay(),
    ]

    assert all(isinstance(result, SingletonResult) for result in results)
    assert [result.duplicate for result in results] == [False] * 7
    assert len(sent(app)) == (0 if eager else 7)


def test_an_override_that_publishes_later_may_return_nothing(app: Celery) -> None:
    """None survives, the waiting slot is taken when the message is sent and not before."""
    install(app, MemoryStore())
    task = app.task(shared=False, name="committed", base=OnCommit, singleton=ONCE)(body_of)

    assert task.delay("a") is None
    first = OnCommit.commit
    assert task.delay("a") is None, "a call that was not sent is in nobody's way"
    published = first()
    duplicate = task.delay("a")

    assert isinstance(published, AsyncResult)
    assert (duplicate.id, duplicate.duplicate) == (published.id, True)


def test_the_slot_is_taken_by_the_run_that_was_sent(app: Celery) -> None:
    """An override may change the run's id: a duplicate gets the result of what was really published."""
    install(app, MemoryStore())
    task = app.task(shared=False, name="renamed", base=Renaming, singleton=ONCE)(body_of)

    assert task.delay("a").id == "chosen-by-the-override"
    assert task.delay("a").id == "chosen-by-the-override"
    assert len(sent(app)) == 1


@pytest.mark.parametrize("value", [None, 7, ["a", "b"]])
def test_whatever_an_override_returns_comes_back(app: Celery, value: object) -> None:
    """It is the user's own, and no result of ours is made of it."""
    install(app, MemoryStore())

    class Returning(Task):  # type: ignore[misc]
        abstract = True

        def apply_async(self, *_args: Any, **_options: Any) -> Any:
            return value

    task = app.task(shared=False, name="returning", base=Returning, singleton=ONCE)(body_of)

    assert task.delay("a") is value


MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "observe": {"install": {"enabled": "observe"}},
    "disabled": {"install": {"enabled": False}},
    "eager": {"eager": True},
    "eager with leases": {"eager": True, "install": {"eager": True}},
    "link": {"call": {"link": signature("other")}},
    "own task_id": {"call": {"task_id": "mine"}},
    "singleton=False": {"call": {"singleton": False}},
    "singleton=True": {"call": {"singleton": True}},
}


@pytest.mark.parametrize("options", [Singleton(by="key"), ONCE], ids=["running", "waiting"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_returns_the_same_kind_of_result(app: Celery, mode: str, options: Singleton) -> None:
    """`duplicate` and `busy` are there to be read wherever `delay` is called."""
    install(app, MemoryStore(), **MODES[mode].get("install", {}))
    app.conf.task_always_eager = MODES[mode].get("eager", False)
    app.task(shared=False, name="other")(body_of)
    task = app.task(shared=False, name="moded", singleton=options)(body_of)

    result = task.apply_async(("a",), **MODES[mode].get("call", {}))

    assert isinstance(result, SingletonResult)
    assert isinstance(result, EagerResult if app.conf.task_always_eager else AsyncResult)
    assert (result.duplicate, result.busy) == (False, None)
    assert isinstance(task.apply(("a",)), SingletonResult)


@pytest.mark.parametrize("options", [Singleton(by="key"), ONCE], ids=["running", "waiting"])
def test_a_result_is_of_the_tasks_own_kind(app: Celery, options: Singleton) -> None:
    """AbortableTask's results can be aborted, a duplicate's as well: it is the same run's."""
    install(app, MemoryStore())
    task = app.task(shared=False, name="abortable", base=AbortableTask, singleton=options)(body_of)

    first, second = task.delay("a"), task.delay("a")
    second.abort()

    assert isinstance(first, AbortableAsyncResult)
    assert isinstance(second, AbortableAsyncResult)
    assert second.is_aborted()
    assert first.is_aborted() is (options is ONCE)
    assert second.duplicate is (options is ONCE)


def test_a_refused_caller_is_told_who_is_in_the_way(app: Celery) -> None:
    """The conflict has the run's id, as the error of those who refuse duplicates elsewhere has."""
    install(app, MemoryStore())
    options = Singleton(by="key", at_most_one="waiting_or_running", on_conflict="raise")
    task = app.task(shared=False, name="refusing", singleton=options)(body_of)
    first = task.delay("a")

    with pytest.raises(Conflict) as refused:
        task.delay("a")
    busy = refused.value.busy
    assert busy is not None
    assert (busy.run_id, busy.reason) == (first.id, Reason.QUEUED)


def test_a_result_survives_a_pickle(app: Celery) -> None:
    """Id, class and who was in the way are the same on the other side."""
    install(app, MemoryStore())
    app.set_current()
    task = app.task(shared=False, name="pickled", singleton=ONCE)(body_of)
    abortable = app.task(shared=False, name="pickled-too", base=AbortableTask, singleton=ONCE)(body_of)
    app.finalize()

    for each in (task, abortable):
        first, second = each.delay("a"), each.delay("a")
        again, duplicate = pickle.loads(pickle.dumps([first, second]))
        assert (again.id, again.duplicate) == (first.id, False)
        assert (duplicate.id, duplicate.busy) == (first.id, second.busy)
        assert duplicate.busy.reason is Reason.QUEUED
        assert isinstance(duplicate, AbortableAsyncResult) is (each is abortable)


def test_track_started_can_be_set_on_a_task(app: Celery) -> None:
    """It is an attribute of Celery's tasks that may be set at any time; it counts after the grant."""
    install(app, MemoryStore(), eager=True)
    task = app.task(shared=False, name="tracked", singleton=True)(body_of)

    task.track_started = True

    assert task.singleflight_tracks_start
    assert task.track_started is False, "Celery's tracer would store STARTED before the claim"


def test_a_base_class_with_rules_for_its_subclasses_is_accepted(app: Celery) -> None:
    """Its `__init_subclass__` is asked about the user's classes, not about ours."""
    install(app, MemoryStore(), eager=True)

    class Registered(Task):  # type: ignore[misc]
        abstract = True

        def __init_subclass__(cls, *, queue: str, **options: Any) -> None:
            super().__init_subclass__(**options)
            cls.queue = queue

    class Export(Registered, queue="exports"):
        name = "export"
        singleton = True

        def run(self) -> str:
            return "ran"

    task = app.register_task(Export())
    app.conf.task_always_eager = True

    assert task.queue == "exports"
    assert task.delay().get() == "ran"


def test_what_is_no_task_may_stand_in_the_registry(app: Celery) -> None:
    """Celery's registry takes any value; it is left alone before, at and after `install`."""
    app.tasks["before"] = before = object()  # type: ignore[assignment]
    install(app, MemoryStore())
    app.tasks["after"] = after = "a text"  # type: ignore[assignment]
    install(app, MemoryStore())

    assert app.tasks["before"] is before
    assert app.tasks["after"] is after


def test_a_request_without_an_id_takes_a_lease(app: Celery) -> None:
    """Tests push requests of their own; one without an id, or with odd properties, is a run like others."""
    store = MemoryStore()
    install(app, store)
    task = app.task(shared=False, name="pushed", singleton=True)(body_of)
    app.finalize()

    for properties in (None, {}, [], "odd"):
        task.push_request(called_directly=False, properties=properties)
        try:
            assert task("ran") == "ran"
        finally:
            state_of(task.request).lease.release()
            task.pop_request()


COUNTED = Singleton(by="key", ttl=7)


def travelling(message: Any) -> list[Any]:
    """Return all options called `singleton` in a message's body, and its header's."""
    found: list[Any] = []

    def look(value: Any) -> None:
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            if name == "singleton":
                found.append(each)
            elif isinstance(each, dict | list):
                look(each)

    look(loads(message.body))
    header = message.headers.get(HEADER)
    return [*found, *([header.get("options")] if header else [])]


@pytest.mark.parametrize("call", [COUNTED, False, True], ids=repr)
@pytest.mark.parametrize("named", [False, True], ids=["by task", "by name"])
@pytest.mark.parametrize(
    "place", ["tail", "end of three", "body", "link", "link_error", "nested", "argument", "alone"]
)
def test_the_option_survives_wherever_a_signature_travels(
    app: Celery, place: str, call: Any, named: bool
) -> None:
    """In chains, chords, links, errbacks and arguments it is in the message, in words that JSON has."""
    app.conf.result_backend = "cache+memory://"
    install(app, MemoryStore())
    app.task(shared=False, name="target", singleton=True)(body_of)
    plain = app.task(shared=False, name="callers-plain")(body_of)
    app.finalize()
    make = app.signature if named else lambda name, *args, **how: app.tasks[name].signature(*args, **how)
    step = make("target", ("x",), immutable=True).set(singleton=call)

    match place:
        case "tail":
            chain(plain.s("a"), step, app=app).apply_async()
        case "end of three":
            (plain.s("a") | plain.si("b") | step).apply_async()
        case "body":
            plain.apply_async(("a",), chord=step)
        case "link":
            plain.apply_async(("a",), link=step)
        case "link_error":
            plain.apply_async(("a",), link_error=[step])
        case "nested":
            chain(plain.s("a"), chord([plain.s("b"), step], plain.si("c"), app=app), app=app).apply_async()
        case "argument":
            plain.apply_async((step,))
        case "alone":
            step.apply_async()
    (message,) = sent(app)
    options = travelling(message)

    assert len(options) == 1
    read = Singleton.from_call(options[0])
    assert read == (COUNTED if call is COUNTED else Singleton() if call else None)


def test_the_option_survives_a_pickle(app: Celery) -> None:
    """What travels is made of mappings, lists, texts and numbers, whatever the serializer is."""
    install(app, MemoryStore())
    target = app.task(shared=False, name="target", singleton=True)(body_of)
    plain = app.task(shared=False, name="callers-plain", serializer="pickle")(body_of)

    plain.apply_async(("a",), link=target.si("x").set(singleton=COUNTED))

    (message,) = sent(app, "pickle")
    assert message.payload[2]["callbacks"][0]["options"]["singleton"] == COUNTED.to_header()


CALLERS: dict[str, Callable[[Celery, Any], Any]] = {
    "call": lambda app, call: app.tasks["target"].apply_async(("x",), singleton=call),
    "by name": lambda app, call: app.send_task("target", ("x",), singleton=call),
    "signature": lambda app, call: app.signature("target", ("x",)).set(singleton=call).apply_async(),
    "link": lambda app, call: app.tasks["first"].apply_async(
        ("a",), link=app.signature("target", ("x",)).set(singleton=call)
    ),
    "chord": lambda app, call: app.tasks["first"].apply_async(
        ("a",), chord=app.signature("target", ("x",)).set(singleton=call)
    ),
    "chain": lambda app, call: chain(
        app.signature("first", ("a",)), app.signature("target", ("x",)).set(singleton=call), app=app
    ).apply_async(),
}
"""Ways to ask for a lease for the task `target`."""


@pytest.mark.parametrize("how", CALLERS)
def test_an_option_that_cannot_travel_is_refused_to_the_caller(app: Celery, how: str) -> None:
    """A callable `by` stays at home; the error says what to write instead."""
    install(app, MemoryStore())
    for name, singleton in {"first": None, "target": True}.items():
        app.task(shared=False, name=name, singleton=singleton)(body_of)
    app.finalize()

    with pytest.raises(ConfigurationError, match="cannot travel in a message"):
        CALLERS[how](app, Singleton(by=lambda **_: "x"))
    assert sent(app) == []


@pytest.mark.parametrize("how", CALLERS)
def test_a_lease_for_a_task_that_takes_none_is_refused_to_the_caller(app: Celery, how: str) -> None:
    """Silence would let it run unprotected; the error says how the task must be declared."""
    install(app, MemoryStore())
    for name in ("first", "target"):
        app.task(shared=False, name=name)(body_of)
    app.finalize()

    with pytest.raises(ConfigurationError, match="task target, which is not declared a singleton"):
        CALLERS[how](app, COUNTED)
    CALLERS[how](app, False)
    assert len(sent(app)) == 1


def test_a_wrong_option_of_a_call_is_refused_wherever_it_stands(app: Celery) -> None:
    """What is no option is named, with what to write."""
    install(app, MemoryStore())
    target = app.task(shared=False, name="target", singleton=True)(body_of)

    for call in (
        lambda: app.send_task("elsewhere", singleton="yes"),
        lambda: target.apply_async(("a",), singleton=7),
    ):
        with pytest.raises(ConfigurationError, match="is not an option"):
            call()
    with pytest.raises(ConfigurationError, match="'windw' is an unknown option"):
        app.send_task("elsewhere", singleton={"windw": 3})


class Bare:
    """A registry that answers to ``in`` and ``[]`` only, all that Celery asks of one when sending."""

    def __init__(self, tasks: Any) -> None:
        self._tasks = tasks

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def __getitem__(self, name: str) -> Any:
        return self._tasks[name]


def test_a_registry_needs_no_more_than_celery_asks_of_it(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks are sent by name, known ones and others, whatever the app's registry is."""
    install(app, MemoryStore())
    app.task(name="known", shared=False, singleton=True)(body_of)
    app.finalize()
    monkeypatch.setattr(app, "_tasks", Bare(app._tasks))

    for name in ("known", "elsewhere"):
        app.send_task(name, kwargs={"key": "a"}, singleton=Singleton(ttl=9))

    assert [message.headers["task"] for message in sent(app)] == ["known", "elsewhere"]


def test_a_send_task_that_is_put_on_the_class_later_is_called_as_it_was_asked(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests and tracers patch the class, with a function or a mock; no app is installed anew for them."""
    install(app, MemoryStore())
    mock, called = Mock(), []
    monkeypatch.setattr(Celery, "send_task", lambda *args, **options: called.append((args, options)))
    app.send_task("elsewhere", countdown=10)
    monkeypatch.setattr(Celery, "send_task", mock)
    app.send_task("elsewhere", ("a",), countdown=10)

    assert called == [((app, "elsewhere"), {"countdown": 10})]
    mock.assert_called_once_with("elsewhere", ("a",), countdown=10)


def test_a_send_task_that_an_app_has_of_its_own_is_called(app: Celery) -> None:
    """Whoever wrapped it before us is asked, with an id that is given by place too."""
    mock = app.send_task = Mock()
    install(app, MemoryStore())

    app.send_task("elsewhere", ("a",), None, None, None, "an-id", singleton=COUNTED)

    assert mock.call_args.args == ("elsewhere", ("a",), None, None, None, "an-id")
    assert HEADER in mock.call_args.kwargs["headers"]


def test_a_revocation_is_heeded_whatever_the_workers_timer_is(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """A look for waiting runs that fails is told in the log, and the command does what it did without us."""
    install(app, MemoryStore())
    watch_revocations()
    panel = SimpleNamespace(
        app=app, consumer=SimpleNamespace(timer=SimpleNamespace(schedule=SimpleNamespace(queue=7)))
    )

    answer = Panel.data["revoke"](panel, "revoked-by-hand")

    assert "revoked" in answer["ok"]
    assert "revoked-by-hand" in state.revoked
    assert "slots of revoked runs" in caplog.text
