"""Where the middleware must stand among the others, and the check before a worker boots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dramatiq.middleware import AgeLimit, ShutdownNotifications, TimeLimit

from singleflight.dramatiq.errors import ConfigurationError
from singleflight.log import logger

if TYPE_CHECKING:
    from dramatiq import Broker, Middleware

BEHIND = (TimeLimit, ShutdownNotifications)
"""They raise into the worker's thread: in front of ours, they could strike in the middle of a claim."""


def place(broker: Broker, middleware: Middleware) -> None:
    """Add a middleware to a broker where it belongs: right behind `AgeLimit`, or else as the first."""
    if any(isinstance(other, AgeLimit) for other in broker.middleware):
        broker.add_middleware(middleware, after=AgeLimit)
    elif broker.middleware:
        broker.add_middleware(middleware, before=type(broker.middleware[0]))
    else:
        broker.add_middleware(middleware)


def check(broker: Broker, middleware: Middleware) -> None:
    """Look at the order before the worker takes its first message.

    Raises:
        ConfigurationError: if the order cannot work; it stops the worker.
    """
    names = [type(other).__name__ for other in broker.middleware]
    own = broker.middleware.index(middleware)
    remedy = (
        "call singleflight.dramatiq.install(broker), or broker.add_middleware(Singleflight(), after=AgeLimit)"
    )
    for place, other in enumerate(broker.middleware):
        name = names[place]
        if other is not middleware and isinstance(other, type(middleware)):
            raise ConfigurationError(f"the broker has {name} twice; add it once")
        if place > own and isinstance(other, AgeLimit):
            raise ConfigurationError(
                f"Singleflight stands before {name}, so messages that are too old would take leases: {remedy}"
            )
        if place < own and isinstance(other, BEHIND):
            raise ConfigurationError(
                f"Singleflight stands after {name}, which could interrupt it during a claim: {remedy}"
            )
        if place > own and any(cls.__name__ == "Prometheus" for cls in type(other).__mro__):
            logger.warning(
                "singleflight: %s stands behind Singleflight, so its gauge of messages in progress sinks "
                "with every skipped message; write broker.add_middleware(Prometheus(), before=AgeLimit)",
                name,
            )
