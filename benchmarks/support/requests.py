"""Requests to Redis, counted where they leave."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis import connection

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def counted_requests() -> Iterator[list[int]]:
    """Count the requests that any Redis client of this process sends; a pipeline is one."""
    kind: Any = connection.AbstractConnection
    send, count = kind.send_packed_command, [0]

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        count[0] += 1
        return send(self, *args, **options)

    kind.send_packed_command = counted
    try:
        yield count
    finally:
        kind.send_packed_command = send
