"""Where settings come from, and what a wrong one says."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from singleflight import ConfigurationError, Kind, Singleton
from singleflight.celery import __file__ as celery_package
from singleflight.celery import install, settings
from singleflight.celery.delivery import HEADER, NESTING, read
from singleflight.celery.line import home_of
from singleflight.stores.memory import MemoryStore
from singleflight.stores.redis import RedisStore
from singleflight.tasks.delivery import Delivery
from singleflight.tasks.message import Carried

if TYPE_CHECKING:
    from singleflight.celery.runtime import Runtime

PROJECT = Path(__file__).resolve().parents[2]


def work() -> None:
    """Do nothing."""


def runtime(
    broker: str = "redis://broker:6379/3", conf: dict[str, Any] | None = None, **given: Any
) -> Runtime:
    """Return what install leaves with an app of this configuration."""
    app = Celery("settings", broker=broker, set_as_current=False)
    app.conf.update(conf or {})
    install(app, **given)
    return app.singleflight


def test_a_keyword_goes_before_the_setting_and_that_before_the_built_in_value() -> None:
    """install(prefix=...) wins over app.conf.singleflight_prefix, which wins over "singleflight"."""
    assert runtime().prefix == "singleflight"
    assert runtime(conf={"singleflight_prefix": "conf"}).prefix == "conf"
    assert runtime(conf={"singleflight_prefix": "conf"}, prefix="given").prefix == "given"


def test_keys_stand_behind_the_brokers_own_prefix() -> None:
    """Whoever shares a broker by global_keyprefix shares the store the same way."""
    conf = {"broker_transport_options": {"global_keyprefix": "shop:"}}

    assert runtime(conf=conf).prefix == "shop:singleflight"


def test_settings_may_come_after_install() -> None:
    """Nothing is read before the first task needs it."""
    app = Celery("late", broker="redis://", set_as_current=False)
    install(app)
    app.conf.singleflight_enabled = "observe"

    assert app.singleflight.enabled == "observe"


def test_the_levels_of_log_lines_are_a_setting() -> None:
    """By keyword or in the app's configuration; a wrong one stops a worker, and names the setting."""
    quiet = runtime(conf={"singleflight_log_levels": {"skipped": "CRITICAL"}})
    loud = runtime(log_levels={Kind.SKIPPED: logging.ERROR})

    with pytest.raises(ConfigurationError, match=r"log_levels.*'skiped' is no event"):
        _ = runtime(conf={"singleflight_log_levels": {"skiped": "INFO"}}).leases
    assert [each.leases.notify._levels[Kind.SKIPPED] for each in (quiet, loud, runtime())] == [50, 40, 20]


def test_leases_go_to_the_brokers_redis_unless_a_store_is_named() -> None:
    """The broker's host and database, or those of singleflight_url, or a ready store."""
    store = runtime().leases.store
    assert isinstance(store, RedisStore)
    assert store._connections.topology.address == "broker:6379/3"
    named = runtime(conf={"singleflight_url": "redis://leases/1"}).leases.store
    assert named._connections.topology.address == "leases:6379/1"
    ready = MemoryStore()
    assert runtime(store=ready).leases.store is ready


def test_a_broker_that_keeps_no_leases_needs_a_store() -> None:
    """The error says what to write."""
    with pytest.raises(ConfigurationError, match="name a store, such as singleflight_url"):
        _ = runtime("amqp://").leases


@pytest.mark.parametrize(
    ("store", "waiting", "lines"),
    [
        (None, None, False),
        (None, "countdown", False),
        (None, "auto", True),
        ("redis://broker:6379/5", "auto", True),
        ("redis://elsewhere:6379/3", "auto", False),
        ("redis://elsewhere:6379/3", "line", True),
        (MemoryStore(), "auto", False),
        (MemoryStore(), "line", True),
    ],
)
def test_runs_wait_in_line_where_one_server_keeps_or_loses_it_all(
    store: Any, waiting: Any, lines: bool
) -> None:
    """By itself only in the broker's own server; anywhere if the app says so."""
    assert runtime(store=store, waiting=waiting).leases.lines is lines


def test_an_app_has_one_home_wherever_it_runs_and_shares_it_with_no_other() -> None:
    """Not its password, but its broker and its name say where its messages go."""

    def home(broker: str, name: str = "one") -> str:
        return home_of(Celery(name, broker=broker, set_as_current=False), "prefix")

    assert home("redis://:secret@broker/3") == home("redis://:other@broker/3")
    assert home("redis://broker/3").startswith("prefix:")
    homes = [home("redis://broker/3"), home("redis://broker/4"), home("redis://broker/3", "two")]
    assert len(set(homes)) == len(homes)


def test_an_ended_run_is_remembered_twice_the_visibility_timeout() -> None:
    """Built in two hours, more if the broker delivers again later than that, and as told if told."""
    long = {"broker_transport_options": {"visibility_timeout": 40_000}}

    assert runtime().leases.store.remember == 7200
    assert runtime(conf=long).leases.store.remember == 80_000
    assert runtime(conf=long, remember=60).leases.store.remember == 60


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"singleflight_enabled": "maybe"}, "singleflight_enabled='maybe' is unknown"),
        ({"singleflight_waiting": "queue"}, "singleflight_waiting='queue' is unknown"),
        ({"singleflight_defaults": {"tll": 3}}, "tll"),
        ({"singleflight_defaults": {"ttl": -3}}, "ttl=-3"),
        ({"singleflight_defaults": 30}, "must be Singleton"),
    ],
)
def test_a_wrong_setting_is_named(conf: dict[str, Any], words: str) -> None:
    """A setting that cannot be is a ConfigurationError with its name and value."""
    settings = runtime(conf=conf)

    with pytest.raises(ConfigurationError, match=words):
        _ = settings.enabled, settings.defaults, settings.leases


def test_call_task_and_defaults_are_asked_in_this_order() -> None:
    """What a call says goes before the declaration, and that before the defaults."""
    app = Celery("order", broker="redis://", set_as_current=False)
    install(app, defaults={"ttl": 5, "on_conflict": "defer", "on_lost": "abort"})
    app.task(shared=False, name="order", singleton=Singleton(ttl=7, on_conflict="skip"))(work)
    carried = Carried(options=Singleton(ttl=9))
    policy = app.singleflight.policy(app.tasks["order"], Delivery("run", 0, "token", (), {}, carried))

    assert policy is not None
    assert (policy.ttl, policy.on_conflict, policy.on_lost) == (9, "skip", "abort")
    assert (
        app.singleflight.policy(
            app.tasks["order"], Delivery("run", 0, "token", (), {}, Carried(options=False))
        )
        is None
    )


def test_any_skip_result_of_a_call_is_taken() -> None:
    """A list or a mapping as skip_result is no reason to fail."""
    app = Celery("skip", broker="redis://", set_as_current=False)
    install(app)
    app.task(shared=False, name="skip", singleton=Singleton(skip_result={"a": [1]}))(work)
    task = app.tasks["skip"]
    delivery = Delivery("run", 0, "token", (), {})

    assert app.singleflight.request(task, app.singleflight.policy(task, delivery), delivery) is not None


@pytest.mark.parametrize(
    ("request_dict", "attempt", "returning"),
    [
        ({}, 0, False),
        ({"retries": 2}, 2, True),
        ({"replaced_task_nesting": 1, "retries": 1}, NESTING + 1, True),
        ({"delivery_info": {"redelivered": True}}, 0, True),
    ],
)
def test_a_delivery_knows_whether_its_run_may_have_started(
    request_dict: dict[str, Any], attempt: int, returning: bool
) -> None:
    """Retries and replacements raise the attempt; a redelivered message may have run."""
    delivery = read({"id": "run", HEADER: None, **request_dict}, "task")

    assert (delivery.attempt, delivery.returning) == (attempt, returning)


@pytest.mark.parametrize(
    ("namespace", "name", "near"),
    [
        (None, "singleflight_prefx", "singleflight_prefix"),
        (None, "singleflight_beat_catchup", "singleflight_beat_catch_up"),
        ("CELERY", "CELERY_SINGLEFLIGHT_LISTENER", "CELERY_SINGLEFLIGHT_LISTENERS"),
        ("CELERY", "CELERY_SINGLEFLIGHT_STORE_TIME", "CELERY_SINGLEFLIGHT_STORE_TIMEOUT"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_nearest_name(
    namespace: str | None, name: str, near: str
) -> None:
    """It is refused at first use, in a publisher too, wherever Celery takes its configuration from."""
    app = Celery("misspelt", broker="redis://", set_as_current=False)
    app.config_from_object(type("Conf", (), {name: "x", "SINGLEFLIGHT_OF_ANOTHER": 1}), namespace=namespace)
    install(app)

    with pytest.raises(ConfigurationError, match=f"^{name} is no setting .* did you mean {near}\\?"):
        _ = app.singleflight.enabled


def test_settings_of_others_and_of_a_namespace_are_left_alone() -> None:
    """Only what begins as our settings do is looked at."""
    conf = {"CELERY_SINGLEFLIGHT_PREFIX": "named", "SINGLEFLIGHT_MINE": 1, "CELERY_OTHER": 2}
    app = Celery("others", broker="redis://", set_as_current=False)
    app.config_from_object(type("Conf", (), conf), namespace="CELERY")
    install(app)

    assert app.singleflight.prefix == "named"


def test_each_setting_that_is_read_is_known_and_documented() -> None:
    """The list of names, the code and the page say the same."""
    sources = [path.read_text() for path in Path(celery_package).parent.glob("*.py")]
    read = {name for text in sources for name in re.findall(r"\.setting\(\s*\"(\w+)\"", text)}
    page = (PROJECT / "docs/celery.md").read_text()

    assert {settings.PREFIX + name for name in read} <= settings.NAMES
    for name in settings.NAMES:
        assert f"`{name.removeprefix(settings.PREFIX)}`" in page or f"`{name}`" in page, name
