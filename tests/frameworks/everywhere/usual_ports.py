"""Lead what asks for Redis' and RabbitMQ's usual ports to this run's own servers: Dramatiq's tests do."""

from __future__ import annotations

import os
from typing import Any

REDIS = 6379


def move() -> None:
    """Patch the drivers; where RabbitMQ's is not installed or no server runs, its port leads nowhere."""
    import redis

    port = int(os.environ["SINGLEFLIGHT_SUITE_REDIS_PORT"])
    original = redis.Connection.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("port", REDIS) == REDIS:
            kwargs["port"] = port
        original(self, *args, **kwargs)

    redis.Connection.__init__ = init  # type: ignore[method-assign]

    from pika.connection import Parameters

    Parameters.DEFAULT_PORT = int(os.environ["SINGLEFLIGHT_SUITE_RABBITMQ_PORT"])
