"""Singleton tasks are found however they are declared, and what cannot be is refused where it is written."""

from __future__ import annotations

import inspect
import sys
import typing
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task, shared_task

from singleflight import ConfigurationError, Singleton, current_lease
from singleflight.celery import install
from singleflight.celery.task import SingletonTask
from singleflight.keys import lease_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def app() -> Iterator[Celery]:
    """Return an app without singleflight; the test installs it when it wants."""
    app = Celery("declared", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True
    yield app
    app.close()


def put_in(app: Celery, **options: Any) -> None:
    """Install with leases for eager runs, in a store of this app's own."""
    install(app, f"memory://{id(app)}", eager=True, **options)


class OwnCall(Task):  # type: ignore[misc]
    """A base class with a `__call__` of its own."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Wrap what the task returns."""
        return ["called", super().__call__(*args, **kwargs)]


class ClassBased(Task):  # type: ignore[misc]
    """A task that is a class."""

    name = "class-based"
    singleton = True

    def run(self) -> bool:
        """Say whether there is a lease."""
        return leased()


def leased() -> bool:
    """Whether the code that asks runs under a lease."""
    return current_lease() is not None


def account_key(account: int) -> str:
    """Return the key of a lease that depends on the account."""
    del account
    lease = current_lease()
    return "" if lease is None else lease.key


def bound_leased(self: Task) -> bool:
    """Say whether there is a lease and a request."""
    return leased() and bool(self.request.id)


def decorated(app: Celery) -> Task:
    """The usual way."""
    return app.task(shared=False, name="decorated", singleton=True)(leased)


def bound(app: Celery) -> Task:
    """A task that gets itself."""
    return app.task(shared=False, name="bound", bind=True, singleton=True)(bound_leased)


def shared(app: Celery) -> Task:
    """A task of every app."""
    shared_task(name="shared", singleton=True)(leased)
    return app.tasks["shared"]


def class_based(app: Celery) -> Task:
    """A task that is a class."""
    return app.register_task(ClassBased())


def own_base(app: Celery) -> Task:
    """A task with a base class that has its own `__call__`."""
    return app.task(shared=False, name="own-base", base=OwnCall, singleton=True)(leased)


def evaluated(app: Celery) -> Task:
    """A task declared once the app is complete."""
    app.finalize()
    return app.task(shared=False, name="evaluated", singleton=True)(leased)


def retrying(app: Celery) -> Task:
    """A task whose `run` Celery wraps."""
    return app.task(shared=False, name="retrying", autoretry_for=(ValueError,), singleton=True)(leased)


KINDS = [decorated, bound, shared, class_based, own_base, evaluated, retrying]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("declare", KINDS)
def test_every_kind_of_task_takes_a_lease(app: Celery, declare: Callable[[Celery], Task], when: str) -> None:
    """Whatever the way, and whether install comes first or last, the body runs under a lease."""
    if when == "after":
        task = declare(app)
        task.name  # noqa: B018 - evaluates the promise
        put_in(app)
    else:
        put_in(app)
        task = declare(app)

    assert isinstance(app.tasks[task.name], SingletonTask)
    # Celery's own `Task.__call__`, which a base class calls, shows the body an empty request in eager runs.
    assert task.delay().get() == (["called", True] if declare is own_base else True)


def test_a_plain_task_is_left_alone(app: Celery) -> None:
    """Tasks without singleton, with singleton=False, and Celery's own stay what they are."""
    put_in(app)
    app.task(shared=False, name="unmarked")(leased)
    app.task(shared=False, name="not", singleton=False)(leased)
    app.finalize()

    mine = [
        task for name, task in app.tasks.items() if name in ("unmarked", "not") or name.startswith("celery.")
    ]
    assert len(mine) > 5
    assert not any(isinstance(task, SingletonTask) for task in mine)
    assert app.tasks["unmarked"].delay().get() is False


def test_an_annotation_makes_a_singleton(app: Celery) -> None:
    """task_annotations come after a task enters the registry; they are looked at again."""
    app.conf.task_annotations = {
        "annotated": {"singleton": Singleton(ttl=7)},
        "celery.map": {"singleton": True},
    }
    put_in(app)
    app.task(shared=False, name="annotated")(leased)
    app.finalize()

    assert app.tasks["annotated"].delay().get() is True
    assert not isinstance(app.tasks["celery.map"], SingletonTask)


def test_an_annotation_does_not_hide_what_singleflight_needs(app: Celery) -> None:
    """Celery writes annotations onto the task's class: track_started there must not come before the grant."""
    app.conf.task_annotations = {"*": {"track_started": True, "rate_limit": "5/s"}}
    put_in(app)
    task = app.task(shared=False, name="annotated", singleton=True)(leased)
    app.finalize()

    assert task.rate_limit == "5/s"
    assert task.track_started is False
    assert task.delay().get() is True


def test_a_tasks_type_hints_and_signature_are_its_functions(app: Celery) -> None:
    """What reads a task's parameters (typing, inspect, documentation tools) reads the same as without us."""
    put_in(app)

    def resize(width: int, name: str = "x") -> bytes:
        """Resize."""
        return name.encode() * width

    plain = app.task(name="plain-hints", shared=False)(resize)
    single = app.task(name="hints", shared=False, singleton=Singleton(by="*"))(resize)

    assert isinstance(single, SingletonTask)
    for read in (typing.get_type_hints, inspect.signature, inspect.getdoc, lambda task: task.__wrapped__):
        assert read(single) == read(plain)
    assert typing.get_type_hints(single) == {"width": int, "name": str, "return": bytes}


def test_autodiscovered_tasks_are_reached(
    app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of modules that Celery imports late are singletons too."""
    package = tmp_path / "discovered_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(
        "from celery import shared_task\n"
        "@shared_task(name='discovered', singleton=True)\n"
        "def discovered(): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    put_in(app)
    app.autodiscover_tasks(["discovered_package"], force=True)
    try:
        assert isinstance(app.tasks["discovered"], SingletonTask)
    finally:
        for name in ("discovered_package", "discovered_package.tasks"):
            sys.modules.pop(name, None)


def test_the_last_install_counts(app: Celery) -> None:
    """Installing again, as tests do, replaces store and settings and wraps nothing twice."""
    put_in(app)
    task = app.task(shared=False, name="twice", singleton=True)(leased)
    task.name  # noqa: B018 - evaluates the promise
    depth = len(type(app.tasks["twice"]).__mro__)
    install(app, "memory://other", enabled=False)

    assert task.delay().get() is False
    assert len(type(app.tasks["twice"]).__mro__) == depth


def test_a_function_as_option_stays_a_function(app: Celery) -> None:
    """`by` may be a callable; Celery would bind it as a method of the task."""
    put_in(app)
    task = app.task(
        shared=False, name="by-function", singleton=Singleton(by=lambda account, **_: account // 10)
    )(account_key)

    assert task.delay(41).get() == task.delay(49).get() != task.delay(51).get()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("yes", "singleton='yes' is not an option; write singleton=True"),
        (Singleton(by="acount"), "by='acount' names no parameter"),
        (Singleton(by=lambda other: other), "cannot take the arguments"),
    ],
)
def test_options_that_cannot_be_are_refused_at_declaration(app: Celery, option: object, words: str) -> None:
    """The error names the task, and comes when it is declared, not at its first run."""
    put_in(app)
    task = app.task(shared=False, name="wrong", singleton=option)(account_key)

    with pytest.raises(ConfigurationError, match="task wrong: ") as caught:
        task.name  # noqa: B018 - evaluates the promise
    assert words in str(caught.value)


def test_options_are_refused_when_install_comes_late(app: Celery) -> None:
    """A task that is there already is checked by install."""
    task = app.task(shared=False, name="wrong", singleton="no")(leased)
    task.name  # noqa: B018 - evaluates the promise

    with pytest.raises(ConfigurationError, match="task wrong: singleton='no'"):
        put_in(app)


def test_the_habit_of_celery_singleton_gets_an_answer(app: Celery) -> None:
    """base=Singleton says what to write instead."""
    task = app.task(shared=False, name="habit", base=Singleton)(leased)

    with pytest.raises(ConfigurationError, match=r"write @app\.task"):
        task.name  # noqa: B018 - evaluates the promise


def test_required_parameters_without_by_warn(app: Celery) -> None:
    """Distinct work that would be skipped is warned of at declaration; by=() says that it is meant."""
    put_in(app)
    task = app.task(shared=False, name="unsaid", singleton=True)(account_key)
    meant = app.task(shared=False, name="meant", singleton=Singleton(by=()))(account_key)

    with pytest.warns(UserWarning, match="task unsaid takes account, but its key is its name only"):
        task.name  # noqa: B018 - evaluates the promise
    assert meant.name == "meant"


def test_two_functions_under_one_name_warn(app: Celery) -> None:
    """Celery runs the first one only, silently; for singletons that is said."""
    put_in(app)
    first = app.task(shared=False, name="same", singleton=True)(leased)
    second = app.task(shared=False, name="same", singleton=True)(bound_leased)
    again = app.task(shared=False, name="same", singleton=True)(leased)

    assert first.name == "same"
    # The words are Celery's own from 5.7 on.
    with pytest.warns(UserWarning, match="already registered to a different|only the first one runs"):
        second.name  # noqa: B018 - evaluates the promise
    assert again.name == "same"


def test_a_name_makes_two_tasks_share_a_lease(app: Celery) -> None:
    """Singleton(name=...) is the key of the plain lease of that name."""
    put_in(app)
    tasks = [
        app.task(shared=False, name=name, singleton=Singleton(name="nightly", by=()))(account_key)
        for name in ("one", "two")
    ]
    keys = {task.delay(1).get() for task in tasks}

    assert keys == {lease_key("singleflight", "nightly")}
