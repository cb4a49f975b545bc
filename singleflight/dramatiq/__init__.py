"""singleflight for Dramatiq: ``install(broker)``, and actors declared ``singleton=...`` take a lease."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from singleflight.errors import NotInstalled

if find_spec("dramatiq") is None:
    raise NotInstalled.of("dramatiq", "dramatiq")

from singleflight.dramatiq import order
from singleflight.dramatiq.actor import Duplicate, SingletonActor
from singleflight.dramatiq.errors import ConfigurationError, Conflict, LeaseLost, StoreUnavailable
from singleflight.dramatiq.middleware import Singleflight
from singleflight.dramatiq.peeking import apeek, peek

if TYPE_CHECKING:
    from dramatiq import Broker

    from singleflight.stores.base import Store

__all__ = [
    "ConfigurationError",
    "Conflict",
    "Duplicate",
    "LeaseLost",
    "Singleflight",
    "SingletonActor",
    "StoreUnavailable",
    "apeek",
    "install",
    "peek",
]


def install(broker: Broker, store: Store | str | None = None, **options: Any) -> Singleflight:
    """Let a broker's actors be singletons; call it before they are declared.

    Puts a `Singleflight` right behind `AgeLimit`, where it belongs.

    Args:
        broker: the Dramatiq broker.
        store: a store or its URL. Built in: the broker's Redis; with a stub broker, this process's memory.
        options: see `Singleflight`.

    Raises:
        ConfigurationError: for a value that cannot be.
    """
    middleware = Singleflight(store, **options)
    order.place(broker, middleware)
    return middleware
