"""What an actor's declaration says: its options checked, and its body put behind the gate."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from dramatiq.asyncio import async_to_sync
from dramatiq.threading import is_gevent_active

from singleflight.dramatiq.actor import SingletonActor
from singleflight.dramatiq.delivery import carried_by
from singleflight.dramatiq.errors import NOT_RETRIED
from singleflight.dramatiq.gate import gated, watched
from singleflight.dramatiq.joining import results_of
from singleflight.errors import ConfigurationError
from singleflight.policy import Singleton, resolve
from singleflight.tasks.placed import warn_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from dramatiq import Actor, Broker, Message

    from singleflight.dramatiq.runtime import Runtime
    from singleflight.policy import Policy


def prepare(actor: Actor[Any, Any], runtime: Runtime) -> None:
    """Check an actor that is being declared with ``singleton=...`` and put its body behind the gate.

    ``singleton=False`` has a gate too, so that a single message can be sent as a singleton.

    Raises:
        ConfigurationError: for options that cannot be.
    """
    if actor.options.get("occurrence") is not None:
        _check_occurrence(actor)
    if "singleton" not in actor.options:
        return
    own = Singleton.from_option(actor.options["singleton"])
    if own is not None:
        policy = resolve(None, own, runtime.defaults)
        check(actor, policy)
        for text in runtime.key_rule(actor, policy).warnings():
            warn_at(actor.fn, text)
    if isinstance(actor, SingletonActor):
        actor.singleflight = runtime
    actor.options["throws"] = (*_several(actor.options.get("throws")), *NOT_RETRIED)
    actor.fn = gated(_watching(actor.fn))


def check_message(message: Message[Any], broker: Broker, runtime: Runtime) -> None:
    """Check a message that is sent with ``singleton=`` or ``occurrence=`` of its own.

    Raises:
        ConfigurationError: for options that cannot be, or an actor that was declared without ``singleton=``.
    """
    actor = broker.actors.get(message.actor_name)
    if actor is None:
        return  # declared elsewhere; the worker looks again
    if "singleton" not in actor.options:
        raise ConfigurationError(
            "a single message can only be a singleton, or have an occurrence, if its actor is declared for "
            "it: write @dramatiq.actor(singleton=True), or singleton=False for no lease unless a message asks"
        )
    runtime.policy_of(actor, carried_by(message).options)


def _check_occurrence(actor: Actor[Any, Any]) -> None:
    if not callable(actor.options["occurrence"]):
        raise ConfigurationError(
            f"occurrence={actor.options['occurrence']!r} is not a function of the message; write "
            "occurrence=every(60), or occurrence=periodiq, from singleflight.dramatiq.occurrences"
        )
    if not actor.options.get("singleton"):
        raise ConfigurationError("occurrence= needs a lease: write singleton=True beside it")


def check(actor: Actor[Any, Any], policy: Policy) -> None:
    """Refuse options that cannot work for an actor.

    Raises:
        ConfigurationError: naming the remedy.
    """
    if policy.on_conflict == "join":
        _check_join(actor, policy)
    if policy.on_lost == "abort" and is_gevent_active():  # type: ignore[no-untyped-call]
        raise ConfigurationError(
            "on_lost='abort' cannot interrupt greenlets; write on_lost='warn' and call "
            "current_lease().check() in the actor"
        )
    if policy.at_publish and not isinstance(actor, SingletonActor):
        raise ConfigurationError(
            f"at_most_one={policy.at_most_one!r} needs an actor that looks before it sends: write "
            "@dramatiq.actor(actor_class=SingletonActor, ...) with singleflight.dramatiq.SingletonActor"
        )


def _check_join(actor: Actor[Any, Any], policy: Policy) -> None:
    results = results_of(actor.broker)
    if results is None or not actor.options.get("store_results", results.store_results):
        raise ConfigurationError(
            "on_conflict='join' takes over a result, and none is kept: put Dramatiq's Results middleware on "
            "the broker before the actor is declared, and write store_results=True"
        )
    if policy.name is not None:
        raise ConfigurationError(
            f"on_conflict='join' with name={policy.name!r} would take over another actor's result; "
            "leave one of them out"
        )
    if policy.by == () and inspect.signature(actor.fn).parameters and not policy.by_given:
        raise ConfigurationError(
            "on_conflict='join' without `by` would hand the result of one call to calls with other "
            "arguments; write by='*', or by=() if that is meant"
        )


def _watching(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of an async actor with its coroutine watched; another one as it is."""
    coroutine = getattr(body, "__wrapped__", None)
    if coroutine is None or not inspect.iscoroutinefunction(coroutine):
        return body
    watching = async_to_sync(watched(coroutine))
    made_by_dramatiq = getattr(body, "__code__", None) is getattr(watching, "__code__", body)
    return watching if made_by_dramatiq else body


def _several(throws: Any) -> tuple[Any, ...]:
    """Return Dramatiq's option ``throws``, a class or a tuple of them, as a tuple."""
    if throws is None:
        return ()
    return throws if isinstance(throws, tuple) else (throws,)
