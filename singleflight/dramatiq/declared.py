"""What an actor's declaration says: its options checked, its body put behind the gate, its key rule."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from singleflight.dramatiq.errors import NOT_RETRIED
from singleflight.dramatiq.gate import gated
from singleflight.errors import ConfigurationError
from singleflight.keys import KeyRule
from singleflight.policy import Singleton, resolve

if TYPE_CHECKING:
    from dramatiq import Actor

    from singleflight.policy import Policy


def defaults(value: Singleton | Mapping[str, Any] | None) -> Singleton | None:
    """Return the configured defaults as options.

    Raises:
        ConfigurationError: for anything but options that can be.
    """
    if isinstance(value, Mapping):
        try:
            value = Singleton(**value)
        except TypeError as error:
            raise ConfigurationError(f"defaults={value!r}: {error}") from None
    if value is not None and not isinstance(value, Singleton):
        raise ConfigurationError(f"defaults={value!r} must be Singleton(...) or a dict of its options")
    resolve(None, None, value)
    return value


def prepare(actor: Actor[Any, Any], defaults: Singleton | None, prefix: str) -> None:
    """Check an actor that is being declared with ``singleton=...`` and put its body behind the gate.

    ``singleton=False`` has a gate too, so that a single message can be sent as a singleton.

    Raises:
        ConfigurationError: for options that cannot be.
    """
    if "singleton" not in actor.options:
        return
    own = Singleton.from_option(actor.options["singleton"])
    if own is not None:
        policy = resolve(None, own, defaults)
        _check(actor, policy)
        for text in key_rule(actor, policy, prefix).warnings():
            warnings.warn(text, stacklevel=2)
    actor.options["throws"] = (*_several(actor.options.get("throws")), *NOT_RETRIED)
    actor.fn = gated(actor.fn)


def key_rule(actor: Actor[Any, Any], policy: Policy, prefix: str) -> KeyRule:
    """Return how calls of an actor become keys.

    Raises:
        ConfigurationError: if ``by`` does not fit the actor's parameters.
    """
    return KeyRule(
        prefix=prefix,
        task=actor.actor_name,
        signature=inspect.signature(actor.fn),
        by=policy.by,
        by_given=policy.by_given,
        name=policy.name,
    )


def _check(actor: Actor[Any, Any], policy: Policy) -> None:
    if policy.at_most_one != "running" or policy.on_conflict == "join":
        raise ConfigurationError(
            f"at_most_one={policy.at_most_one!r} with on_conflict={policy.on_conflict!r} is not available "
            "for Dramatiq in this version; at_most_one='running' with skip, defer, coalesce or raise is"
        )
    if inspect.iscoroutinefunction(inspect.unwrap(actor.fn)):
        raise ConfigurationError("async actors cannot be singletons in this version; declare it with def")


def _several(throws: Any) -> tuple[Any, ...]:
    """Return Dramatiq's option ``throws``, a class or a tuple of them, as a tuple."""
    if throws is None:
        return ()
    return throws if isinstance(throws, tuple) else (throws,)
