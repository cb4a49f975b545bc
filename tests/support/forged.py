"""Messages as anybody may write them who can reach the broker: no Celery, no Dramatiq, no singleflight."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Self

from kombu import Producer

if TYPE_CHECKING:
    from celery import Celery

EMBED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class Forger:
    """Publishes to a Celery app's broker what Celery would not; a context manager."""

    def __init__(self, app: Celery) -> None:
        self._connection = app.connection_for_write()
        self._producer = Producer(self._connection)

    def __enter__(self) -> Self:
        """Connect with the first message."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._connection.release()

    def publish(
        self,
        task: str,
        args: Any = (),
        kwargs: Any = None,
        *,
        run_id: Any = None,
        headers: dict[str, Any] | None = None,
        embed: Any = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        properties: dict[str, Any] | None = None,
    ) -> Any:
        """Publish one message and return its id.

        Args:
            task: the task's name.
            args: positional arguments, or what stands in their place.
            kwargs: keyword arguments, or what stands in their place.
            run_id: the message's id, a new one if there is none.
            headers: more headers, and others.
            embed: what else is in the body.
            body: the whole body instead.
            content_type: what the message says of its body.
            properties: more properties.
        """
        run_id = str(uuid.uuid4()) if run_id is None else run_id
        usual = {"lang": "py", "task": task, "id": run_id, "root_id": run_id, "retries": 0, "argsrepr": "()"}
        whole = [
            args,
            {} if kwargs is None else kwargs,
            {**EMBED, **embed} if isinstance(embed, dict) else EMBED,
        ]
        self._producer.publish(
            json.dumps(whole).encode() if body is None else body,
            exchange="",
            routing_key="celery",
            headers={**usual, **(headers or {})},
            content_type=content_type,
            content_encoding="utf-8",
            correlation_id=str(run_id),
            **(properties or {}),
        )
        return run_id
