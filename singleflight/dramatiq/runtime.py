"""What the middleware knows: its settings, the store they lead to, and what holds for one message."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dramatiq import Message
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import ActorNotFound

from singleflight.api import run_around
from singleflight.dramatiq import line
from singleflight.dramatiq.delivery import carried_by, own_options, read
from singleflight.dramatiq.joining import result_of
from singleflight.errors import ConfigurationError
from singleflight.key_rules import rule_of
from singleflight.leases.calling import Calling
from singleflight.leases.claiming import Leases
from singleflight.log import logger
from singleflight.policy import Policies, Singleton, resolve
from singleflight.stores import as_store
from singleflight.stores.memory import MemoryStore
from singleflight.tasks.line import way_to_wait
from singleflight.tasks.message import Carried, tell_once
from singleflight.tasks.publishing import Place, Slots, leave

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dramatiq import Actor, Broker
    from dramatiq.broker import MessageProxy

    from singleflight.events import Notify
    from singleflight.key_rules import KeyRule
    from singleflight.leases.claiming import Request
    from singleflight.policy import Policy
    from singleflight.stores.base import Release, Store
    from singleflight.tasks.delivery import Delivery

NAMESPACE = "dramatiq"
"""What Dramatiq's Redis broker calls its namespace if nobody says otherwise."""


class Runtime:
    """Settings, checked where they are written; the store is opened when it is first needed."""

    def __init__(
        self,
        store: Store | str | None,
        *,
        prefix: str,
        enabled: bool | Literal["observe"],
        defaults: Singleton | Mapping[str, Any] | None,
        store_timeout: float,
        remember: float,
        waiting: str | None,
        notify: Notify,
        check: Callable[[Actor[Any, Any], Policy], None],
    ) -> None:
        """Check the settings; ``check`` refuses options that cannot work for an actor.

        Raises:
            ConfigurationError: for a value that cannot be.
        """
        if enabled not in (True, False, "observe"):
            raise ConfigurationError(f"enabled={enabled!r} is unknown; write True, False or 'observe'")
        self.enabled = enabled
        self.defaults = _defaults(defaults)
        self.notify = notify
        self._check = check
        self._waiting = way_to_wait(waiting)
        self._prefix = prefix
        if not isinstance(store, str | None):
            as_store(store)  # opens nothing, and refuses what is no store where it is given
        self._store = store
        self._limits = {"timeout": store_timeout, "remember": remember}
        self._opening = threading.Lock()
        self._opened: tuple[Leases, Slots] | None = None
        self._policies = Policies(lambda: self.defaults)

    def leases(self, broker: Broker) -> Leases:
        """Return the leases of a broker's actors.

        Raises:
            ConfigurationError: if no store is named and the broker keeps none.
        """
        return self._open(broker)[0]

    def slots(self, broker: Broker) -> Slots:
        """Return the same store as those ask who must not be slow.

        Raises:
            ConfigurationError: if no store is named and the broker keeps none.
        """
        return self._open(broker)[1]

    def place(self, actor: Actor[Any, Any], message: Message[Any]) -> Place | None:
        """Return a message's place in the queue for its key; None if nobody queues for it.

        Raises:
            ConfigurationError: if its options or arguments cannot be.
        """
        carried = carried_by(message)
        policy = self.policy_of(actor, carried.options)
        queues = policy is not None and (policy.at_publish or carried.deferrals > 0)
        if policy is None or not queues or self.enabled == "observe":
            return None
        decoded = Message.decode(message.encode())  # the worker sees lists where the caller wrote tuples
        key = self.key(actor, policy, decoded.args, decoded.kwargs, decoded.options)
        if key is None:
            return None
        return Place(
            self.slots(actor.broker),
            key,
            actor.actor_name,
            policy,
            publisher=run_around(key),
            is_over=lambda run: result_of(actor.broker, message, run) is not None,
        )

    def leave(self, broker: Broker, release: Release) -> None:
        """Record the end of a message that has not run, and free its place."""
        leave(self._open(broker)[1], release, ended=True)

    def cancel(self, broker: Broker, message: MessageProxy) -> None:
        """Do so for a message that ends before it came to us: too old, say, or aborted."""
        try:
            actor = broker.get_actor(message.actor_name)
            place = self.place(actor, message.copy())
            delivery = read(message, actor)
        except ActorNotFound:
            return
        except Exception as error:  # noqa: BLE001 - a message that cannot be read cannot have had a place
            logger.warning(
                "%s[%s]: a place that it may have is left to lapse: %s",
                message.actor_name, message.message_id, error,
            )  # fmt: skip
            return
        if place is not None:
            place.cancel(delivery.leaving(place.key)._replace(began=False))

    def _open(self, broker: Broker) -> tuple[Leases, Slots]:
        with self._opening:  # two memory stores would be no store
            if self._opened is None:
                store = _open(broker, self._store, **self._limits)
                leases = Leases(store, self.notify, self._calling(broker, store))
                self._opened = leases, Slots(leases.releasing, self.notify, leases.breaker)
            return self._opened

    def _calling(self, broker: Broker, store: Store) -> Calling | None:
        if not line.waits(broker, self._waiting, self._store):
            return None
        return Calling(store, line.home_of(broker, self.prefix(broker)), partial(line.publish, broker))

    def prefix(self, broker: Broker) -> str:
        """Return what all keys start with: ours, behind a Redis broker's namespace if it is no usual one."""
        namespace = getattr(broker, "namespace", NAMESPACE)
        return self._prefix if namespace == NAMESPACE else f"{namespace}:{self._prefix}"

    def policy(self, actor: Actor[Any, Any], carried: Carried) -> Policy | None:
        """Return what holds for one run of an actor; None if it takes no lease.

        Options that its message brings, and may not or cannot, count as not given; the log says so once.
        """
        try:
            return self.policy_of(actor, carried.options)
        except ConfigurationError as error:
            if carried.options is None:
                raise
            tell_once(actor.actor_name, f"its options are left out: {error}")
        return self.policy_of(actor, None)

    def policy_of(self, actor: Actor[Any, Any], call: Singleton | Literal[False] | None) -> Policy | None:
        """Return what holds for a message with these options; None if it takes no lease.

        Raises:
            ConfigurationError: for options that cannot be, or that a single message may not have.
        """
        if not self.enabled or "singleton" not in actor.options:
            return None
        policy = self._policies.of(actor.actor_name, actor.options["singleton"], call)
        if policy is not None and isinstance(call, Singleton):
            self._check(actor, policy)
            self.key_rule(actor, policy)
        return policy

    def key(
        self,
        actor: Actor[Any, Any],
        policy: Policy,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> str | None:
        """Return the key of a call with decoded arguments and options; None if they do not fit the actor.

        Raises:
            ConfigurationError: if an argument that counts cannot be part of a key.
        """
        return self.key_rule(actor, policy).key(args, kwargs, own_options(options))

    def key_rule(self, actor: Actor[Any, Any], policy: Policy) -> KeyRule:
        """Return how calls of an actor become keys.

        Raises:
            ConfigurationError: if ``by`` does not fit the actor's parameters.
        """
        prefix, name = self.prefix(actor.broker), actor.actor_name
        return rule_of(prefix, name, actor.fn, policy.by, policy.name, by_given=policy.by_given)

    def request(self, actor: Actor[Any, Any], policy: Policy, delivery: Delivery) -> Request | None:
        """Return what a delivery asks the store for; None if its arguments do not fit the actor."""
        observing = self.enabled == "observe"
        lines = not observing and self.leases(actor.broker).lines
        return delivery.request(self.key_rule(actor, policy), policy, observing=observing, lines=lines)


def _defaults(value: object) -> Singleton | None:
    defaults = Singleton.from_setting("defaults", value)
    resolve(None, None, defaults)
    return defaults


def _open(broker: Broker, store: Store | str | None, *, timeout: float, remember: float) -> Store:
    if store is not None:
        return as_store(store, timeout=timeout, remember=remember)
    if isinstance(broker, StubBroker):
        return MemoryStore(remember=remember)
    client = getattr(broker, "client", None)
    if client is not None:
        from singleflight.stores.redis.store import RedisStore  # noqa: PLC0415 - an optional driver

        return RedisStore.from_client(client, timeout=timeout, remember=remember)
    raise ConfigurationError(
        f"{type(broker).__name__} keeps no leases: name a store, such as Singleflight('redis://host:6379/0')"
    )
