"""What goes along when Celery pickles its app for a process that is not forked."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import redis
from billiard.reduction import ForkingPickler
from celery import Celery, current_app
from celery.app.trace import build_tracer
from celery.signals import worker_process_init

from singleflight import ConfigurationError, Singleton
from singleflight.celery import install
from singleflight.celery.task import SingletonTask
from singleflight.stores import open_store
from singleflight.stores.memory import MemoryStore
from singleflight.stores.redis.store import RedisStore

if TYPE_CHECKING:
    from singleflight.events import Event

URL = "redis://:secret@127.0.0.1:6390/3"


def listen(event: Event) -> None:
    """Be a listener that can be pickled: a function with a name."""


def work() -> None:
    """Be a task's body."""


class Reduced(Celery):  # type: ignore[misc]
    """An app that is pickled in Celery's old way, because it has arguments of its own."""

    def __reduce_args__(self) -> Any:
        return super().__reduce_args__()


def make(kind: type[Celery] = Celery) -> Celery:
    """Return an app with nothing installed."""
    return kind("pickled", broker="memory://", set_as_current=False)


def copied(app: Celery) -> Celery:
    """Return what a process that is not forked gets."""
    copy: Celery = pickle.loads(bytes(ForkingPickler.dumps(app)))
    return copy


def where(store: Any) -> Any:
    """Return where a store keeps its records."""
    if isinstance(store, RedisStore):
        return store._connections.topology
    return next(getattr(store, name) for name in ("_address", "address") if hasattr(store, name))


@pytest.mark.parametrize("kind", [Celery, Reduced])
def test_a_copy_has_the_leases_of_its_app(kind: type[Celery]) -> None:
    """Store, keywords and settings go along, and tasks that are declared on the copy are singletons."""
    app = make(kind)
    app.conf.singleflight_store_timeout = 0.5
    assert app.conf.broker_url  # configured: before that, Celery's old way of pickling leaves settings behind
    install(app, URL, prefix="staging", remember=9, listeners=[listen], defaults=Singleton(ttl=7))
    copy = copied(app)

    task = copy.task(name="t", singleton=True, lazy=False)(work)
    runtime = copy.singleflight
    assert isinstance(task, SingletonTask)
    assert runtime.policy(task).ttl == 7
    assert runtime.prefix == "staging"
    assert runtime.setting("store_timeout") == 0.5
    assert runtime.setting("listeners") == (listen,)
    assert where(runtime.leases.store) == where(app.singleflight.leases.store)
    assert runtime.leases.store.remember == 9


def test_the_last_install_counts_in_a_copy_too() -> None:
    """What was given before is not sent."""
    app = make()
    install(app, MemoryStore(), prefix="first", listeners=[lambda _event: None])
    install(app, URL, prefix="second")

    assert copied(app).singleflight.prefix == "second"


def test_an_app_without_leases_is_pickled_as_ever() -> None:
    """Nothing is added to an app that install() was not called for."""
    assert not hasattr(copied(make()), "singleflight")


@pytest.mark.parametrize(
    "store",
    [
        open_store(URL, timeout=2, remember=5),
        open_store("redis+sentinel://127.0.0.1:6391,127.0.0.1:6392/name/0"),
        open_store("redis+cluster://127.0.0.1:6393"),
        RedisStore.from_client(redis.Redis(port=6394, password="secret")),
        open_store("sqlite:////tmp/no-such-file"),
        open_store("dynamodb://table?region=eu-central-1"),
    ],
    ids=["redis", "sentinels", "cluster", "client", "sql", "dynamodb"],
)
def test_a_store_that_is_given_as_an_object_goes_along(store: Any) -> None:
    """Each store of ours is made anew where it is sent, without a connection of the first process."""
    app = make()
    install(app, store)
    there = copied(app).singleflight.leases.store

    assert type(there) is type(store)
    assert where(there) == where(store)
    assert (there.timeout, there.remember) == (store.timeout, store.remember)


def test_a_copy_that_was_made_without_its_leases_runs_no_singleton() -> None:
    """A pool that copies its app in a way of its own has such tasks fail, with a sentence that says why."""
    app = make()
    install(app, MemoryStore())
    rebuild, arguments = Celery.__reduce__(app)
    copy = rebuild(*arguments)
    copy.task(name="t", singleton=True, lazy=False)(work)
    before = current_app._get_current_object()
    copy.set_current()
    try:
        worker_process_init.send(sender="host")
    finally:
        before.set_current()

    result = build_tracer("t", copy.tasks["t"], app=copy)("id", (), {}, {"id": "id", "delivery_info": {}})
    assert isinstance(result.info.retval, ConfigurationError)
    assert "worker_process_init" in str(result.info.retval)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"store": MemoryStore()}, "store.*MemoryStore.*URL"),
        (
            {"listeners": [listen, lambda _event: None]},
            "listeners=.*<lambda>.*top of a module",
        ),
        ({"defaults": {"by": lambda: ()}}, r"defaults=\{'by'.*top of a module"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    """The process that would send it learns what it is, and what to write instead."""
    app = make()
    install(app, **given)

    with pytest.raises(ConfigurationError, match=named):
        copied(app)
