"""The middleware: from Dramatiq's hooks to claim and release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dramatiq import Middleware

from singleflight.api import PREFIX
from singleflight.dramatiq import declared, endings, errors, gate, marks, order
from singleflight.dramatiq.adapter import DramatiqAdapter
from singleflight.dramatiq.delivery import carry, read, write
from singleflight.dramatiq.runtime import Runtime
from singleflight.events import Notify, levels_of
from singleflight.leases.keeper import process_keeper
from singleflight.log import logger
from singleflight.stores import STORE_TIMEOUT, risks_of
from singleflight.stores.base import REMEMBER
from singleflight.tasks.adapter import Answer, Run
from singleflight.tasks.admission import Admission
from singleflight.tasks.line import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dramatiq import Actor, Broker, Message, Worker
    from dramatiq.broker import MessageProxy

    from singleflight.events import Event
    from singleflight.policy import Singleton
    from singleflight.stores.base import Store
    from singleflight.tasks.adapter import Result

GRANTED = "singleflight_granted"
"""The attribute under which a message proxy keeps its grant; a copy in the same process has none."""


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
        waiting: how a run waits that is refused and must run: ``"countdown"`` (built in), ``"line"`` or
            ``"auto"``, see the settings of Celery.
        listeners: called with each `singleflight.Event`, after the log.
        log_levels: the levels of log lines that are not to have their usual one, by kind of event:
            ``{"skipped": "WARNING"}``.

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
        waiting: str | None = None,
        listeners: Iterable[Callable[[Event], None]] = (),
        log_levels: Mapping[str, str | int] | None = None,
    ) -> None:
        self.runtime = Runtime(
            store,
            prefix=prefix,
            enabled=enabled,
            defaults=defaults,
            store_timeout=store_timeout,
            remember=remember,
            waiting=waiting,
            notify=Notify(tuple(listeners), levels_of(log_levels)),
            check=declared.check,
        )
        self._owns_process = False
        self._sweeps: dict[Worker, Sweep] = {}

    @property
    def actor_options(self) -> set[str]:
        """The options of actors: ``singleton``, and ``occurrence`` for those that are scheduled."""
        return {"singleton", "occurrence"}

    def before_declare_actor(self, broker: Broker, actor: Actor[Any, Any]) -> None:
        """Refuse what cannot be, and put the gate around the body of a singleton."""
        with errors.unswallowed(f"actor {actor.actor_name}"):
            declared.prepare(actor, self.runtime)

    def before_enqueue(self, broker: Broker, message: Message[Any], delay: int | None) -> None:
        """Write ``singleton=`` and ``occurrence=`` of a single message so that they can travel."""
        with errors.unswallowed(message.actor_name):
            if carry(message):
                declared.check_message(message, broker, self.runtime)
            actor = broker.actors.get(message.actor_name)
            if actor is None or "singleton" in actor.options:  # unknown: it is declared elsewhere
                marks.mark(message)

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Check what a worker needs before it takes its first message: the order, and a store."""
        order.check(broker, self)
        if self.runtime.enabled:
            with errors.unswallowed(type(broker).__name__):
                leases = self.runtime.leases(broker)
            for text in risks_of(leases.store):
                logger.warning("singleflight: %s", text)

    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Call those who wait in line where whoever should have called them has died."""
        if not self.runtime.enabled or not any("singleton" in one.options for one in broker.actors.values()):
            return
        leases = self.runtime.leases(broker)
        if leases.calling is not None:
            self._sweeps[worker] = Sweep(leases)
            self._sweeps[worker].start()

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Call nobody any more from here, but for whom a run that ends frees its key."""
        sweep = self._sweeps.pop(worker, None)
        if sweep is not None:
            sweep.stop()

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """Claim, and end the delivery here if the claim is refused."""
        gate.admit(None)
        marks.begin(message)
        actor = broker.get_actor(message.actor_name)
        if "singleton" not in actor.options:
            return
        with errors.unswallowed(message.actor_name):
            delivery = read(message, actor)
            policy = self.runtime.policy(actor, delivery.carried)
            request = self.runtime.request(actor, policy, delivery) if policy else None
            if policy is None or request is None:
                return
            leases, observing = self.runtime.leases(broker), self.runtime.enabled == "observe"
            adapter = DramatiqAdapter(broker, message)
            fate = Admission(adapter, leases, policy, delivery, request, observing).decide()
            if not isinstance(fate, Run | Answer):
                endings.end(broker, message, fate)
            gate.admit(_ticket(message, fate, keeps_slot=policy.at_publish))

    def after_process_message(
        self,
        broker: Broker,
        message: MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        """Note how the body ended; Dramatiq may call this twice, and the last word counts."""
        gate.admit(None)
        granted = _granted(message)
        if granted is not None:
            granted.failed = exception is not None

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """Forget what the body would have met; a message that nobody has sent on is over."""
        gate.admit(None)
        over = not (message.failed or gate.was_sent(message.message_id))
        granted = _granted(message)
        if granted is not None:
            granted.cancelled = over
        elif over and gate.OURS not in message.__dict__:
            self.runtime.cancel(broker, message)

    def before_ack(self, broker: Broker, message: MessageProxy) -> None:
        """Give the lease back: results are stored, retries and further stages are sent."""
        marks.end()
        gate.note_sent(None)
        granted = _granted(message)
        if granted is not None:
            granted.give_back(message)
        self._leave(broker, message)

    def before_nack(self, broker: Broker, message: MessageProxy) -> None:
        """Note that this thread's message is over."""
        marks.end()
        gate.note_sent(None)
        if message.actor_name not in broker.actors:
            # Nobody here can run it. Its dead letter is as it was sent: whoever sends it again marks it anew.
            marks.unmark(message)

    def after_nack(self, broker: Broker, message: MessageProxy) -> None:
        """Give lease or place back once the failure is stored, which happens in this hook of `Results`."""
        granted = _granted(message)
        if granted is not None:
            granted.give_back(message)
        elif not self._leave(broker, message):
            self.runtime.cancel(broker, message)

    def after_enqueue(self, broker: Broker, message: Message[Any], delay: int | None) -> None:
        """Note when the retry comes that the message in this thread has just sent."""
        marks.forget(message)
        gate.note_sent(message.message_id)
        granted = gate.working()
        if granted is not None and granted.message_id == message.message_id:
            granted.again = (delay or 0) / 1000

    def _leave(self, broker: Broker, message: MessageProxy) -> bool:
        release = gate.take_leaving(message)
        if release is not None:
            self.runtime.leave(broker, release)
        return release is not None

    def after_process_boot(self, broker: Broker) -> None:
        """Note that this process is a worker and nothing else."""
        self._owns_process = True

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """End the keeper of a worker process, which runs no exit handlers, with a last try at releases."""
        if self._owns_process:
            process_keeper().stop()


def _ticket(message: MessageProxy, fate: Run | Answer, *, keeps_slot: bool) -> gate.Granted | Result | None:
    """Return what the body meets: its lease, a result in its stead, or nothing of ours."""
    granted: gate.Granted | None = None
    if isinstance(fate, Answer):
        gate.leave_at_end(message, fate.leaves)
        if fate.lease is None:
            return fate.result
        granted = gate.Granted(fate.lease, message.message_id, instead=fate.result)
    elif fate.lease is not None:
        if fate.carried is not None:
            write(message, fate.carried)
        granted = gate.Granted(fate.lease, message.message_id, fate.abort, keeps_slot)
    if granted is not None:
        setattr(message, GRANTED, granted)
    return granted


def _granted(message: MessageProxy) -> gate.Granted | None:
    return message.__dict__.get(GRANTED)
