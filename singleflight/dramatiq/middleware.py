"""The middleware: from Dramatiq's hooks to claim and release."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

from dramatiq import Middleware
from dramatiq.middleware import MiddlewareError

from singleflight.decisions import slot_wait
from singleflight.dramatiq import declared, errors, order
from singleflight.dramatiq.arrival import Arrival
from singleflight.dramatiq.delivery import Delivery, carry
from singleflight.dramatiq.gate import Granted, admit
from singleflight.dramatiq.opening import open_for, prefix_for
from singleflight.errors import ConfigurationError, SingleflightError
from singleflight.events import Notify
from singleflight.flight import PREFIX, Leases, Request
from singleflight.keeper import process_keeper
from singleflight.policy import Singleton, resolve
from singleflight.stores import STORE_TIMEOUT
from singleflight.stores.base import REMEMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dramatiq import Actor, Broker, Message, Worker
    from dramatiq.broker import MessageProxy

    from singleflight.events import Event
    from singleflight.policy import Policy
    from singleflight.stores.base import Store

GRANTED = "singleflight_granted"
"""The attribute under which a message proxy keeps its `Granted`; a copy in the same process has none."""


class Singleflight(Middleware):
    """Lets actors be declared ``singleton=True`` or ``singleton=Singleton(...)``.

    It belongs right behind `AgeLimit`; `singleflight.dramatiq.install` puts it there. It must be on the
    broker before such actors are declared.

    Args:
        store: a store or its URL. Built in: the broker's Redis; with a stub broker, this process's memory.
        prefix: what all keys start with, behind the broker's namespace if that is not Dramatiq's own.
        enabled: True (built in), False, or ``"observe"``: everything runs, conflicts are logged and counted.
        defaults: options of every singleton actor that says nothing else.
        store_timeout: seconds that one request to the store may take, built in 1.
        remember: seconds for which an ended run is recognised, built in two hours.
        listeners: called with each `singleflight.Event`, after the log.

    Raises:
        ConfigurationError: for a value that cannot be.
    """

    def __init__(
        self,
        store: Store | str | None = None,
        *,
        prefix: str = PREFIX,
        enabled: bool | Literal["observe"] = True,
        defaults: Singleton | Mapping[str, Any] | None = None,
        store_timeout: float = STORE_TIMEOUT,
        remember: float = REMEMBER,
        listeners: Iterable[Callable[[Event], None]] = (),
    ) -> None:
        if enabled not in (True, False, "observe"):
            raise ConfigurationError(f"enabled={enabled!r} is unknown; write True, False or 'observe'")
        self.enabled = enabled
        self.prefix = prefix
        self.defaults = declared.defaults(defaults)
        self._store = store
        self._limits = {"timeout": store_timeout, "remember": remember}
        self._notify = Notify(tuple(listeners))
        self._opening = threading.Lock()
        self._leases: Leases | None = None
        self._owns_process = False

    @property
    def actor_options(self) -> set[str]:
        """The option that actors may have: ``singleton``."""
        return {"singleton"}

    def leases(self, broker: Broker) -> Leases:
        """Return the leases of a broker's actors.

        Raises:
            ConfigurationError: if no store is named and the broker keeps none.
        """
        with self._opening:
            if self._leases is None:
                self._leases = Leases(open_for(broker, self._store, **self._limits), self._notify)
            return self._leases

    def policy(self, actor: Actor[Any, Any], delivery: Delivery) -> Policy | None:
        """Return what holds for one run of an actor; None if it takes no lease."""
        own, call = Singleton.from_option(actor.options.get("singleton")), delivery.carried.options
        if call is False or (own is None and call is None):
            return None
        return resolve(call if isinstance(call, Singleton) else None, own, self.defaults)

    def before_declare_actor(self, broker: Broker, actor: Actor[Any, Any]) -> None:
        """Refuse what cannot be, and put the gate around the body of a singleton."""
        try:
            declared.prepare(actor, self.defaults, prefix_for(broker, self.prefix))
        except SingleflightError as error:
            raise errors.ConfigurationError(f"actor {actor.actor_name}: {error}") from None

    def before_enqueue(self, broker: Broker, message: Message[Any], delay: int | None) -> None:
        """Write the option ``singleton=`` of a single message so that it can travel."""
        try:
            carry(message.options)
        except SingleflightError as error:
            raise errors.ConfigurationError(f"{message.actor_name}: {error}") from None

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Check what a worker needs before it takes its first message: the order, and a store."""
        order.check(broker, self)
        if self.enabled:
            try:
                self.leases(broker)
            except SingleflightError as error:
                raise errors.ConfigurationError(str(error)) from error

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """Claim, and end the delivery here if the claim is refused."""
        admit(None)
        if not self.enabled:
            return
        try:
            self._arrive(broker, message)
        except MiddlewareError:
            raise
        except SingleflightError as error:
            raise errors.ConfigurationError(f"{message.actor_name}: {error}") from error
        except Exception as error:
            # Dramatiq would log it and run the actor, without a lease.
            raise errors.ClaimFailed(
                f"{message.actor_name} was not run, for want of a lease: {error!r}"
            ) from error

    def _arrive(self, broker: Broker, message: MessageProxy) -> None:
        actor = broker.get_actor(message.actor_name)
        delivery = Delivery.read(message)
        policy = self.policy(actor, delivery)
        if policy is None:
            return
        key = declared.key_rule(actor, policy, prefix_for(broker, self.prefix)).key(
            delivery.args, delivery.kwargs
        )
        if key is None:
            return
        carried, waits = delivery.carried, policy.one_waits or delivery.carried.patient
        request = Request(
            key=key,
            task=actor.actor_name,
            run_id=delivery.run_id,
            token=delivery.token,
            attempt=delivery.attempt,
            ttl=policy.ttl,
            window=policy.window,
            wait=slot_wait(carried.deferrals) if waits else 0.0,
            first=carried.patient,
            max_hold=policy.max_hold,
        )
        observing = self.enabled == "observe"
        arrival = Arrival(broker, message, delivery, policy, request, self.leases(broker), observing)
        ticket = arrival.admission()
        if isinstance(ticket, Granted):
            setattr(message, GRANTED, ticket)
        admit(ticket)

    def after_process_message(
        self,
        broker: Broker,
        message: MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        """Note how the body ended; Dramatiq may call this twice, and the last word counts."""
        admit(None)
        granted = _granted(message)
        if granted is not None:
            granted.failed = exception is not None

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """Forget what the body would have met."""
        admit(None)

    def before_ack(self, broker: Broker, message: MessageProxy) -> None:
        """Give the lease back: results are stored, retries and further stages are sent."""
        granted = _granted(message)
        if granted is not None:
            granted.lease.release(granted.outcome(message))

    before_nack = before_ack

    def after_process_boot(self, broker: Broker) -> None:
        """Note that this process is a worker and nothing else."""
        self._owns_process = True

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """End the keeper of a worker process, which runs no exit handlers, with a last try at releases."""
        if self._owns_process:
            process_keeper().stop()


def _granted(message: MessageProxy) -> Granted | None:
    return message.__dict__.get(GRANTED)
