"""Which store a broker's leases are in, and what its keys start with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dramatiq.brokers.stub import StubBroker

from singleflight.errors import ConfigurationError
from singleflight.stores import open_store

if TYPE_CHECKING:
    from dramatiq import Broker

    from singleflight.stores.base import Store

NAMESPACE = "dramatiq"
"""What Dramatiq's Redis broker calls its namespace if nobody says otherwise."""


def open_for(broker: Broker, store: Store | str | None, *, timeout: float, remember: float) -> Store:
    """Return a named store, or the one that goes with a broker.

    Raises:
        ConfigurationError: if no store is named and the broker keeps none.
    """
    if isinstance(store, str):
        return open_store(store, timeout=timeout, remember=remember)
    if store is not None:
        return store
    if isinstance(broker, StubBroker):
        return open_store("memory://", remember=remember)
    client = getattr(broker, "client", None)
    if client is not None:
        from singleflight.stores.redis import RedisStore  # noqa: PLC0415 - an optional driver

        return RedisStore.from_client(client, timeout=timeout, remember=remember)
    raise ConfigurationError(
        f"{type(broker).__name__} keeps no leases: name a store, such as Singleflight('redis://host:6379/0')"
    )


def prefix_for(broker: Broker, prefix: str) -> str:
    """Return what all keys start with: the namespace of a Redis broker that has its own, then ours."""
    namespace = getattr(broker, "namespace", NAMESPACE)
    return prefix if namespace == NAMESPACE else f"{namespace}:{prefix}"
