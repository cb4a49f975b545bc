"""What operators ask of the servers behind a store, and grant to those who use it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from singleflight.errors import SingleflightError
from singleflight.stores.redis.per_process import Connections
from singleflight.stores.redis.rights import instructions
from singleflight.stores.redis.topology import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from singleflight.stores.redis.topology import Topology

    Answer = TypeVar("Answer")
    Question = Callable[[Any], Answer]

FORGETFUL = (
    "maxmemory-policy of {} is {}: a full server forgets leases, and two runs of a key may start; "
    "CONFIG SET maxmemory-policy noeviction, or keep leases in a server of their own"
)
"""What is dangerous about a server that may evict them."""


class Operated:
    """The part of a store that is no lease's business; a request may take half of ``timeout``."""

    def __init__(self, topology: Topology, timeout: float) -> None:
        self.timeout = timeout
        self._connections = Connections(topology)

    def set_up(self) -> bool:
        """See `SetUp.set_up`."""
        return False

    def instructions(self, prefix: str) -> list[str]:
        """See `SetUp.instructions`: a user for workers, and one for operators."""
        topology = self._connections.topology
        return instructions(
            prefix, cluster=isinstance(topology, Cluster), replicas=bool(topology.min_replicas)
        )

    def servers(self) -> dict[str, Callable[[Question[Answer]], Answer]]:
        """Return, by address, how an operator asks each server with keys what is no lease's business.

        A question is a function that takes a redis-py client.
        """
        connection = self._connections.get("requests", self.timeout / 2)
        with self._connections.translating(connection, "the server"):
            clients = connection.primaries()

        def asker(client: Any) -> Callable[[Question[Answer]], Answer]:
            def ask(question: Question[Answer]) -> Answer:
                with self._connections.translating(connection, "the server"):
                    return question(client)

            return ask

        if len(clients) == 1:
            return {self._connections.topology.address: asker(clients[0])}
        kwargs = [client.connection_pool.connection_kwargs for client in clients]
        return {
            f"{one['host']}:{one['port']}": asker(client) for one, client in zip(kwargs, clients, strict=True)
        }

    def risks(self) -> list[str]:
        """Return what is dangerous about the servers, one sentence with its remedy each.

        What the user may not see is left out, as is a server that does not answer.
        """
        found: list[str] = []
        with suppress(SingleflightError):
            for ask in self.servers().values():
                with suppress(SingleflightError):
                    info: dict[str, Any] = ask(lambda client: client.info("memory"))
                    policy = str(info.get("maxmemory_policy", "noeviction"))
                    if policy != "noeviction":
                        found.append(FORGETFUL.format(self._connections.topology.address, policy))
        return list(dict.fromkeys(found))

    def scan(self, prefix: str) -> Iterator[str]:
        """See `Listing.scan`; SCAN may give a key more than once, and never blocks a server for long."""
        connection = self._connections.get("requests", self.timeout / 2)
        pattern = re.sub(r"([*?\[\]^\\-])", r"\\\1", prefix) + ":*"
        seen: set[bytes] = set()
        with self._connections.translating(connection, prefix):
            servers = connection.primaries()
        for server in servers:
            cursor, more = 0, True
            while more:
                with self._connections.translating(connection, prefix):
                    cursor, keys = server.scan(cursor, match=pattern, count=1000, _type="string")
                more = cursor != 0
                for key in keys:
                    if key not in seen:
                        seen.add(key)
                        yield key.decode(errors="surrogateescape")
