"""Is an actor running? Asked by its arguments, without sending anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dramatiq import Message

from singleflight.dramatiq import errors
from singleflight.dramatiq.middleware import Singleflight
from singleflight.errors import ConfigurationError
from singleflight.keys import lease_key
from singleflight.status import Status
from singleflight.stores.view import View
from singleflight.tasks.message import Carried

if TYPE_CHECKING:
    from dramatiq import Actor

    from singleflight.dramatiq.runtime import Runtime


def peek(actor: Actor[Any, Any], /, *args: Any, **kwargs: Any) -> Status:
    """Look whether a run of this actor with these arguments is under way; nothing is sent or changed.

    Args:
        actor: one that is declared ``singleton=...``. If its key is its name only, it needs no arguments.
        args, kwargs: those that `send` would get; they go through the broker's encoder, as those do.

    Returns:
        A `singleflight.Status`, true if a run holds the key. With ``enabled=False`` nothing is asked, and
        nothing runs.

    Raises:
        ConfigurationError: if the actor takes no lease, or its arguments cannot make a key.
        StoreUnavailable: if the store does not answer in time, or has just failed to.
        TypeError: if the actor does not take such arguments.
    """
    with errors.translated(actor.actor_name):
        runtime = _runtime(actor)
        policy = runtime.policy(actor, Carried())
        if policy is None and runtime.enabled:
            raise ConfigurationError("it takes no lease; declare it with singleton=True")
        if policy is None:
            return Status(key="")
        if policy.by == ():
            key = lease_key(runtime.prefix(actor.broker), policy.name or actor.actor_name)
        else:
            message = actor.message_with_options(args=args, kwargs=kwargs)
            decoded: Message[Any] = Message.decode(message.encode())  # the worker sees lists for tuples
            key = runtime.key_rule(actor, policy).key_of_call(decoded.args, decoded.kwargs)
        return View(runtime.slots(actor.broker).ask(lambda store: store.peek(key))).status(key)


async def apeek(actor: Actor[Any, Any], /, *args: Any, **kwargs: Any) -> Status:
    """Do what `peek` does, without making the event loop wait for the store."""
    from singleflight.leases.awaiting import in_thread  # noqa: PLC0415 - few need it, and it brings asyncio

    return await in_thread(lambda: peek(actor, *args, **kwargs), lane=id(actor))


def _runtime(actor: Actor[Any, Any]) -> Runtime:
    for middleware in actor.broker.middleware:
        if isinstance(middleware, Singleflight):
            return middleware.runtime
    raise ConfigurationError(
        "its broker has no leases; call singleflight.dramatiq.install(broker) before the actor is declared"
    )
