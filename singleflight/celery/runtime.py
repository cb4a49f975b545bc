"""One app's settings, its store, and the rules of its tasks; everything is worked out at first use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from singleflight.api import PREFIX
from singleflight.celery import joining, line, settings
from singleflight.celery.delivery import option_of
from singleflight.celery.signals import sending
from singleflight.errors import ConfigurationError
from singleflight.events import Notify, levels_of
from singleflight.key_rules import rule_of
from singleflight.keys import stem
from singleflight.leases.calling import Calling
from singleflight.leases.claiming import Leases
from singleflight.policy import Policies, Singleton
from singleflight.stores import STORE_TIMEOUT, as_store, open_store
from singleflight.stores.base import REMEMBER, Release
from singleflight.tasks.decisions import LONGEST_DEFERRAL
from singleflight.tasks.line import waits_in_line, way_to_wait
from singleflight.tasks.message import tell_once
from singleflight.tasks.publishing import Slots, leave

if TYPE_CHECKING:
    from celery import Celery, Task

    from singleflight.key_rules import KeyRule
    from singleflight.leases.claiming import Request
    from singleflight.policy import Policy
    from singleflight.stores.base import Store
    from singleflight.tasks.delivery import Delivery

REDIS_TRANSPORTS = ("redis", "rediss", "valkey", "valkeys", "sentinel")
SENTINEL_OPTIONS = ("master_name", "sentinel_kwargs", "min_other_sentinels")
"""Transport options that say how to reach the primary, beside the broker's URL."""
VISIBILITY_TIMEOUTS = {**dict.fromkeys(REDIS_TRANSPORTS, 3600), "sqs": 1800, "pgmq": 1800, "slmq": 1800}
"""Seconds: what those of kombu's transports assume that have one, if nobody says otherwise."""


class Runtime:
    """What `install` leaves with an app: settings are read when the first task needs them, not before."""

    def __init__(self, app: Celery, store: Store | str | None, given: Mapping[str, Any]) -> None:
        """Keep the keywords of `install`; each goes before the setting ``singleflight_<name>``."""
        self.app = app
        if not isinstance(store, str | None):
            as_store(store)  # opens nothing, and refuses what is no store where it is given
        self._store = store
        self._given = given
        self._policies = Policies(lambda: self.defaults)
        self._names_are_right = False

    def setting(self, name: str, built_in: Any = None) -> Any:
        """Return ``name`` as given to `install`, else ``app.conf.singleflight_<name>``, else built in.

        Raises:
            ConfigurationError: if the configuration has a setting of ours that there is not.
        """
        if self._given.get(name) is not None:
            return self._given[name]
        if not self._names_are_right:
            settings.check_names(self.app)
            self._names_are_right = True
        value = self.app.conf.get(f"{settings.PREFIX}{name}")
        return built_in if value is None else value

    @property
    def given(self) -> tuple[Store | str | None, dict[str, Any]]:
        """What `install` was given: the store, and the keywords that were used."""
        return self._store, {name: value for name, value in self._given.items() if value is not None}

    def changed(self, store: Store, **given: Any) -> Runtime:
        """Return the same with another store, and other keywords of `install`."""
        return Runtime(self.app, store, {**self._given, **given})

    @cached_property
    def enabled(self) -> bool | Literal["observe"]:
        """Whether leases are taken: True, False, or ``"observe"``: everything runs, conflicts are counted."""
        value = self.setting("enabled", True)
        if value not in (True, False, "observe"):
            raise ConfigurationError(
                f"singleflight_enabled={value!r} is unknown; write True, False or 'observe'"
            )
        return "observe" if value == "observe" else bool(value)

    @cached_property
    def eager(self) -> bool:
        """Whether eager runs take leases too; built in: no, so that tests need no store."""
        return bool(self.setting("eager", False))

    @cached_property
    def defaults(self) -> Singleton | None:
        """Options of every singleton task that says nothing else."""
        return Singleton.from_setting("singleflight_defaults", self.setting("defaults"))

    @cached_property
    def visibility_timeout(self) -> float | None:
        """Seconds after which the broker delivers an unacknowledged message again; None if it does not."""
        transport = self.app.connection_for_write().transport_cls
        if transport not in VISIBILITY_TIMEOUTS:
            return None
        options = self.app.conf.broker_transport_options or {}
        return float(options.get("visibility_timeout") or VISIBILITY_TIMEOUTS[transport])

    @property
    def first_of_several(self) -> str:
        """The broker that keeps the leases, if there are others to fail over to; else empty."""
        broker = self.app.connection_for_write()
        named = self._store is not None or self.setting("url") is not None
        transport = broker.transport_cls
        several = len(broker.alt) > 1 and transport in REDIS_TRANSPORTS and transport != "sentinel"
        return f"{broker.hostname}:{broker.port}" if several and not named else ""

    @cached_property
    def longest_deferral(self) -> float:
        """Seconds for which a run is deferred at most: so that the broker does not deliver it meanwhile."""
        visible = self.visibility_timeout
        return LONGEST_DEFERRAL if visible is None else min(LONGEST_DEFERRAL, max(1.0, visible // 2))

    @cached_property
    def prefix(self) -> str:
        """What all keys start with: the broker's ``global_keyprefix``, then ours."""
        options = self.app.conf.broker_transport_options or {}
        return f"{options.get('global_keyprefix') or ''}{self.setting('prefix', PREFIX)}"

    @cached_property
    def leases(self) -> Leases:
        """The app's leases, in the store that was named or in the broker's Redis.

        Raises:
            ConfigurationError: if no store is named and the broker is not Redis or Valkey.
        """
        return self.open_leases()

    @cached_property
    def slots(self) -> Slots:
        """The waiting slots, as publishers ask for them."""
        return Slots(self.leases.releasing, self.leases.notify, self.leases.breaker)

    def leave(self, release: Release, *, ended: bool = False, until: float = 0.0) -> None:
        """See `singleflight.tasks.publishing.leave`."""
        leave(self.slots, release, ended=ended, until=until)

    def is_own(self, task: Task, key: str) -> bool:
        """Return whether a key that a message names is one of its task's, by the declaration."""
        policy = self.policy_of(task, None)
        names = {task.name, *([policy.name] if policy is not None and policy.name else [])}
        return key.startswith(tuple(stem(self.prefix, name) for name in names))

    def check_results(self, task: Task, policy: Policy) -> None:
        """Refuse a result backend under which a task's options cannot work.

        Raises:
            ConfigurationError: naming the remedy.
        """
        backend = joining.scheme(task)
        if policy.on_conflict == "join":
            joining.check_backend(backend)
        if policy.at_publish and backend == "rpc":
            raise ConfigurationError(
                f"{task.name}: at_most_one={policy.at_most_one!r} gives a duplicate's publisher another "
                "run's result, but rpc:// shows a result to its own publisher only; "
                "use a result backend that all can read, such as redis://, or none"
            )

    def open_leases(self, *, remember: float | None = None) -> Leases:
        """Return leases in the app's store; ``remember`` goes before the setting if the store is a URL."""
        store = self._open(remember)
        return Leases(store, self._notify(), self._calling(store))

    def _calling(self, store: Store) -> Calling | None:
        way = way_to_wait(self.setting("waiting"), "singleflight_waiting")
        if way == "countdown":
            return None
        named = self._store if self._store is not None else self.setting("url")
        broker = self.app.connection_for_write()
        if not waits_in_line(way, named, (broker.hostname, broker.port)):
            return None
        return Calling(store, line.home_of(self.app, self.prefix), partial(line.publish, self.app))

    def _notify(self) -> Notify:
        listeners = sending(self.app), *self.setting("listeners", ())
        return Notify(listeners, levels_of(self.setting("log_levels")))

    def _open(self, remember: float | None) -> Store:
        store = self._store if self._store is not None else self.setting("url")
        limits: dict[str, Any] = {
            "timeout": float(self.setting("store_timeout", STORE_TIMEOUT)),
            "remember": remember
            or float(self.setting("remember", max(REMEMBER, 2 * (self.visibility_timeout or 0)))),
        }
        if store is not None:
            return as_store(store, **limits)
        broker = self.app.connection_for_write()
        if broker.transport_cls not in REDIS_TRANSPORTS:
            raise ConfigurationError(
                f"the broker ({broker.transport_cls}) keeps no leases: name a store, such as "
                "singleflight_url='redis://host:6379/0' in the app's configuration or install(app, 'redis://...')"
            )
        if broker.ssl:
            limits.update(broker.ssl if isinstance(broker.ssl, Mapping) else {}, ssl=True)
        # Older versions of kombu know none.
        if provider := getattr(broker, "credential_provider", None):
            limits["credential_provider"] = provider
        if broker.transport_cls != "sentinel":
            return open_store(broker.as_uri(include_password=True), **limits)
        given = broker.transport_options
        limits.update({name: given[name] for name in SENTINEL_OPTIONS if name in given})
        return open_store(";".join(broker.alt) or broker.as_uri(include_password=True), **limits)

    def policy(self, task: Task, delivery: Delivery | None = None) -> Policy | None:
        """Return what holds for one run of a task; None if it takes no lease.

        Options that its message brings, and may not or cannot, count as not given; the log says so once.
        """
        call = None if delivery is None else delivery.carried.options
        try:
            return self.policy_of(task, call)
        except ConfigurationError as error:
            if call is None:
                raise
            tell_once(task.name, f"its options are left out: {error}")
        return self.policy_of(task, None)

    def policy_of(self, task: Task, call: Singleton | Literal[False] | None) -> Policy | None:
        """Return what holds for a call with these options; None if it takes no lease.

        Raises:
            ConfigurationError: for options that cannot be, or that a single call may not have.
        """
        policy = self._policies.of(task.name, option_of(task), call)
        if policy is not None and isinstance(call, Singleton):
            joining.check(task, policy)
            key_rule(self.prefix, task, policy)
            if not self.app.conf.task_always_eager:
                self.check_results(task, policy)
        return policy

    def request(self, task: Task, policy: Policy, delivery: Delivery) -> Request | None:
        """Return what a delivery asks the store for; None if its arguments do not fit the task."""
        observing = self.enabled == "observe"
        lines = not observing and self.leases.lines
        return delivery.request(key_rule(self.prefix, task, policy), policy, observing=observing, lines=lines)


def key_rule(prefix: str, task: Task, policy: Policy) -> KeyRule:
    """Return how calls of a task become keys.

    Raises:
        ConfigurationError: if ``by`` does not fit the task's parameters.
    """
    return rule_of(prefix, task.name, task.run, policy.by, policy.name, by_given=policy.by_given)
