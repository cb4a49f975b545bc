"""Commands to one Redis server and their answers, on a connection of a redis-py pool.

redis-py's own way to send a command takes longer than the server takes to answer it; a lease is claimed and
given back for every task. What is left out (retries, measuring, changing answers) no lease needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

from singleflight.stores.redis.errors import driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    Word = str | int | bytes
    Command = Sequence[Word]


def ask(pool: Any, command: Command) -> Any:
    """Send one command and return its answer; an answer that is an error is raised."""
    connection = _connection(pool)
    try:
        connection.send_packed_command((packed(command),))
        return connection.read_response()
    except driver.ResponseError:
        raise
    except BaseException:
        # The next request on this connection would read the answer to this one.
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def ask_all(pool: Any, commands: Sequence[Command]) -> list[Any]:
    """Send many commands at once and return their answers; an answer may be an exception."""
    connection = _connection(pool)
    try:
        connection.send_packed_command((b"".join(map(packed, commands)),))
        return [_answer(connection) for _ in commands]
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def packed(command: Command) -> bytes:
    """Return a command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(command)]
    for word in command:
        if isinstance(word, str):
            data = word.encode("utf-8", "surrogatepass")  # UTF-8 at any price, see lua/runs.lua
        else:
            data = b"%d" % word if isinstance(word, int) else word
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except driver.ResponseError as error:
        return error


def _connection(pool: Any) -> Any:
    return pool.get_connection() if _NAMES_NO_COMMAND else pool.get_connection("EVALSHA")


_NAMES_NO_COMMAND = tuple(map(int, redis.__version__.split(".")[:2])) >= (5, 3)
"""redis-py 5.3 and later deprecate telling the pool which command the connection is for."""
