"""A message that waits in a line: as it came, in bytes, and published again as that."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from kombu.pools import producers

from singleflight.celery.delivery import HEADER
from singleflight.celery.state import state_of
from singleflight.tasks.message import mapping

if TYPE_CHECKING:
    from celery import Celery, Task

    from singleflight.stores.lining import Called
    from singleflight.tasks.message import Carried

BROKERS = re.compile(r"redelivered$|x-(first-|last-)?death")
"""What the broker says of a delivery. Celery's Context collects it among the custom headers, and if RabbitMQ
meets its own history again, it takes the next delay for a circle and keeps the message for good."""

DELAY = re.compile(r"^(?:[01]\.){28}")
"""What a delay by RabbitMQ leaves before a routing key."""

PROPERTIES = (
    *("correlation_id", "reply_to", "priority", "delivery_mode"),
    *("expiration", "message_id", "type", "app_id"),
)
"""What a message is published with again; the rest is of one delivery."""

GONE = ("compression",)
"""Headers that are true no more: kombu has undone it."""

AMQP = ("amqp", "amqps", "pyamqp", "librabbitmq")


def message_of(task: Task, run_id: str, carried: Carried) -> bytes | None:
    """Return the message that a task works on, with ``carried`` in it and without its countdown.

    None if it came in another form than is published today, or with headers that no JSON can say.
    """
    request = task.request
    arrival = state_of(request).arrival
    if arrival is None or arrival.content_type is None or arrival.body is None:
        return None
    headers = {
        name: value
        for name, value in arrival.headers.items()
        if name not in GONE and not BROKERS.match(str(name))
    }
    properties = mapping(request.properties)
    kept = {
        "body": b64encode(arrival.body).decode(),
        "content_type": arrival.content_type,
        "content_encoding": arrival.content_encoding,
        "headers": {**headers, "eta": None, HEADER: carried.write(run_id, task.name)},
        "properties": {name: properties[name] for name in PROPERTIES if properties.get(name) is not None},
        **_route(task),
    }
    try:
        return json.dumps(kept, separators=(",", ":")).encode()
    except (TypeError, ValueError):
        return None


def publish(app: Celery, called: Called) -> None:
    """Publish a message of `message_of`, with what says that it was called; returns once it is confirmed."""
    kept = json.loads(called.message)
    kept["headers"][HEADER].update(call_no=called.call_no, order=called.order)
    with _producers(app).acquire(block=True) as producer:
        producer.publish(
            b64decode(kept["body"]),
            exchange=kept["exchange"],
            routing_key=kept["routing_key"],
            content_type=kept["content_type"],
            content_encoding=kept["content_encoding"],
            headers=kept["headers"],
            retry=True,  # a pooled connection may be a dead one
            retry_policy={"max_retries": 1, "interval_start": 0},
            **kept["properties"],
        )


def _producers(app: Celery) -> Any:
    """Return the app's own producers, or some that wait for confirmation where those do not."""
    connection = app.pool.connection
    if connection.transport_cls not in AMQP or connection.transport_options.get("confirm_publish"):
        return app.producer_pool
    options = {**connection.transport_options, "confirm_publish": True}
    return producers[connection.clone(transport_options=options)]


def home_of(app: Celery, prefix: str) -> str:
    """Return the name of what this app can publish to: the same in all its processes, and of no other app."""
    broker = app.connection_for_write()
    place = broker.transport_cls, broker.alt or broker.hostname, broker.port, broker.virtual_host, app.main
    return f"{prefix}:home:celery:{hashlib.sha256(repr(place).encode()).hexdigest()[:16]}"


def has_quorum_queues(task: Task) -> bool:
    """Say whether Celery hands delayed messages to RabbitMQ."""
    queues = task.app.amqp.queues.values()
    return any((queue.queue_arguments or {}).get("x-queue-type") == "quorum" for queue in queues)


def quorum_queue(task: Task) -> str | None:
    """Return the queue that a run must come back to: of a delayed message Celery would take the default."""
    consumed = task.app.amqp.queues.consume_from
    if len(consumed) == 1:
        return str(next(iter(consumed)))
    key = DELAY.sub("", (task.request.delivery_info or {}).get("routing_key") or "")
    return next((name for name, queue in consumed.items() if key in (queue.routing_key, name)), None)


def _route(task: Task) -> dict[str, Any]:
    """Return where the message came from."""
    info = mapping(task.request.delivery_info)
    queue = quorum_queue(task) if has_quorum_queues(task) else None
    if queue is not None:
        return {"exchange": "", "routing_key": queue}
    return {"exchange": info.get("exchange") or "", "routing_key": info.get("routing_key") or ""}
