"""A message that waits in a line: as it came, in bytes, and sent again as that."""

from __future__ import annotations

import hashlib
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dramatiq import Message
from dramatiq.brokers.stub import StubBroker

from singleflight.dramatiq import marks
from singleflight.dramatiq.delivery import carried_by, write
from singleflight.errors import ConfigurationError
from singleflight.tasks.line import waits_in_line

if TYPE_CHECKING:
    from dramatiq import Broker
    from dramatiq.broker import MessageProxy

    from singleflight.stores.lining import Called
    from singleflight.tasks.message import Carried

Place = tuple[str | None, Any]
"""Host and port; of a socket its path, and no port."""


def message_of(message: MessageProxy, carried: Carried) -> bytes:
    """Return the message that a worker has got, with ``carried`` in it."""
    copy: Message[Any] = message.copy()
    write(copy, carried)
    return bytes(copy.encode())


def publish(broker: Broker, called: Called) -> None:
    """Send a message of `message_of`, with what says that it was called; returns once the broker has it."""
    message = Message.decode(called.message)
    write(message, replace(carried_by(message), call_no=called.call_no, order=called.order))
    # In a context of its own: this thread may have a message, of which other hooks keep what they send.
    copy_context().run(_enqueue, broker, message)


def _enqueue(broker: Broker, message: Message[Any]) -> None:
    with marks.unmarked.on():
        broker.enqueue(message)


def waits(broker: Broker, way: str, named: object) -> bool:
    """Say whether refused runs wait in the line of the store; see `singleflight.tasks.line.waits_in_line`.

    Raises:
        ConfigurationError: for the line and a broker that could lose whom it is given.
    """
    if way == "countdown":
        return False
    trouble = _trouble(broker)
    if not trouble:
        place: Place = (None, None) if isinstance(broker, StubBroker) else _places(broker)[0][:2]
        return waits_in_line(way, named, place)
    if way == "line":
        raise ConfigurationError(f"waiting='line': {trouble}")
    return False


def home_of(broker: Broker, prefix: str) -> str:
    """Return the name of what this broker can send to: the same in all its processes, and of no other one."""
    what = id(broker) if isinstance(broker, StubBroker) else _places(broker)
    place = type(broker).__name__, getattr(broker, "namespace", ""), what
    return f"{prefix}:home:dramatiq:{hashlib.sha256(repr(place).encode()).hexdigest()[:16]}"


def _trouble(broker: Broker) -> str:
    """Return why this broker's messages cannot wait in a line; empty if they can."""
    if isinstance(broker, StubBroker):
        return ""
    if not _places(broker):
        return f"{type(broker).__name__} does not say where it is; write waiting='countdown'"
    if not getattr(broker, "confirm_delivery", True):
        return "a message that is sent on must be confirmed; write RabbitmqBroker(..., confirm_delivery=True)"
    return ""


def _places(broker: Any) -> list[tuple[str | None, Any, Any]]:
    """Return host, port and database of a broker, of each of its nodes."""
    pool = getattr(getattr(broker, "client", None), "connection_pool", None)
    if pool is not None:  # Redis
        given = pool.connection_kwargs
        service = getattr(pool, "service_name", None)  # of Sentinels
        return [(given.get("host") or given.get("path") or service, given.get("port"), given.get("db") or 0)]
    parameters = getattr(broker, "parameters", None) or ()  # RabbitMQ
    several = parameters if isinstance(parameters, list | tuple) else [parameters]
    return [(one.host, one.port, one.virtual_host) for one in several]
