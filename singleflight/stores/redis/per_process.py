"""The connections of a process to one topology: one for each purpose, so that none waits for another."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from singleflight.stores.redis.errors import cause_of, driver, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.stores.redis.connection import ClusterConnection, Connection
    from singleflight.stores.redis.topology import Topology

OF_THE_STORE = (driver.RedisError, OSError)
"""Errors that mean something about the store; all others are somebody else's, such as a time limit."""


class Connections:
    """Made when they are first needed; a forked child makes its own and leaves the parent's alone."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._made: dict[str, tuple[int, float, Connection | ClusterConnection]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave connections behind: a copy in another process makes its own."""
        return {**self.__dict__, "_made": {}}

    def get(self, purpose: str, timeout: float) -> Connection | ClusterConnection:
        """Return this process's connection for a purpose."""
        pid = os.getpid()
        made = self._made.get(purpose)
        if made is None or made[:2] != (pid, timeout):
            made = self._made[purpose] = (pid, timeout, self.topology.connection(timeout))
        return made[2]

    @contextmanager
    def translating(self, connection: Connection | ClusterConnection, key: str) -> Iterator[None]:
        """Turn the driver's errors into ours."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised again
            self.fail(connection, error, key)

    def fail(self, connection: Connection | ClusterConnection, error: BaseException, key: str) -> NoReturn:
        """Raise an error of the driver as one of ours; after one, no connection is trusted any more.

        That holds for an exception from outside too, such as a time limit that strikes between request
        and reply: the next request would read the reply of this one.
        """
        connection.drop()
        if not isinstance(error, OF_THE_STORE):
            # Struck while it lent or took back a connection, a pool counts that one as lent for ever.
            self._made = {purpose: made for purpose, made in self._made.items() if made[2] is not connection}
            raise error
        raise translated(error, self.topology.address, key) from cause_of(error)

    def close(self) -> None:
        """Close those of this process."""
        connections, self._made = self._made, {}
        for pid, _, connection in connections.values():
            if pid == os.getpid():
                connection.close()
