"""Valkey servers that belong together: a cluster, and a primary with its replica and its sentinels."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from urllib.parse import quote

import redis

from tests.support.servers import ValkeyServer, free_port
from tests.support.waiting import until

if TYPE_CHECKING:
    from typing import Any, Self

SLOTS = 16384


def client_of(server: ValkeyServer, **options: Any) -> redis.Redis:
    """Return a client with all rights on one server."""
    return redis.Redis(port=server.port, socket_timeout=10, **options)


class ValkeyCluster:
    """A cluster of primaries that share all slots evenly; extra arguments go to every node."""

    def __init__(self, *arguments: str, size: int = 3) -> None:
        self._exits = ExitStack()
        self._arguments = arguments
        self._size = size
        self.nodes: list[ValkeyServer] = []

    @property
    def url(self) -> str:
        """Where its first two nodes are: the others are for clients to find."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes[:2])}"

    def client(self, node: int) -> redis.Redis:
        """Return a client of one node, to be closed with the cluster."""
        return self._exits.enter_context(closing(client_of(self.nodes[node])))

    def node_id(self, node: int) -> str:
        """Return the name that a node has among the others."""
        return str(self.client(node).execute_command("CLUSTER", "MYID").decode())

    def owner(self, slot: int) -> int:
        """Return which node has a slot."""
        for first, last, (_, port, *_), *_ in self.client(0).execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return [node.port for node in self.nodes].index(port)
        raise AssertionError(f"nobody has slot {slot}")

    def begin_move(self, slot: int, target: int) -> None:
        """Have both nodes know that the slot is to move: new keys go to the target, others are still here."""
        source = self.owner(slot)
        self.client(target).execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        self.client(source).execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(target))

    def move_keys(self, slot: int, target: int) -> int:
        """Move the keys that the slot has, and return how many."""
        source = self.client(self.owner(slot))
        keys = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        if keys:
            port = self.nodes[target].port
            source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 10_000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, target: int) -> None:
        """Give the slot to the target for good."""
        name = self.node_id(target)
        for node in (target, self.owner(slot)):
            self.client(node).execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)
        until(lambda: self.owner(slot) == target, 20, "the first node to hear of it")

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for _ in range(self._size):
                port = free_port()
                node = ValkeyServer(
                    *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
                    *("--cluster-node-timeout", "5000", "--cluster-require-full-coverage", "no"),
                    *self._arguments,
                    port=port,
                )
                self.nodes.append(starting.enter_context(node))
            self._exits = starting.pop_all()
        self._form()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _form(self) -> None:
        edges = [SLOTS * number // self._size for number in range(self._size + 1)]
        for number, node in enumerate(self.nodes):
            client = self.client(number)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", edges[number], edges[number + 1] - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            bus = int(node._arguments[3])
            for other in range(number):
                self.client(other).execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)

        def formed(number: int) -> bool:
            info = self.client(number).execute_command("CLUSTER", "INFO")
            text = info.decode() if isinstance(info, bytes) else str(info)
            return "cluster_slots_assigned:16384" in text and "cluster_state:ok" in text

        for number in range(self._size):
            until(lambda number=number: formed(number), 30, f"node {number} to know all slots")


class SentinelServer(ValkeyServer):
    """A sentinel that watches one primary, called `SERVICE`."""

    def __init__(self, primary: ValkeyServer, *lines: str) -> None:
        super().__init__("--sentinel")
        watch = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 2",
            f"sentinel down-after-milliseconds {SERVICE} 1000",
            f"sentinel failover-timeout {SERVICE} 2000",
        ]
        (self.folder / "sentinel.conf").write_text("\n".join([*watch, *lines, ""]))

    def _options(self) -> list[str]:
        return [str(self.folder / "sentinel.conf")]


SERVICE = "leases"


class SentinelGroup:
    """A primary, its replica, and three sentinels, of which two must agree.

    ``password`` is for the servers, ``sentinel_password`` for the sentinels.
    """

    def __init__(self, password: str = "", sentinel_password: str = "") -> None:
        self._exits = ExitStack()
        self.password = password
        self.sentinel_password = sentinel_password
        own = ["--requirepass", password, "--masterauth", password] if password else []
        self.servers = [ValkeyServer("--repl-diskless-sync-delay", "0", *own) for _ in range(2)]
        self.sentinels: list[SentinelServer] = []

    @property
    def nodes(self) -> list[str]:
        """Where the sentinels are."""
        return [f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """Whom to ask for which service, with the passwords."""
        user = f":{quote(self.password)}@" if self.password else ""
        own = f"?sentinel_password={quote(self.sentinel_password)}" if self.sentinel_password else ""
        return f"redis+sentinel://{user}{','.join(self.nodes)}/{SERVICE}{own}"

    def client(self, server: ValkeyServer) -> redis.Redis:
        """Return a client of one of the servers."""
        return self._exits.enter_context(closing(client_of(server, password=self.password or None)))

    def asked(self, sentinel: SentinelServer) -> redis.Redis:
        """Return a client of one of the sentinels."""
        return self._exits.enter_context(
            closing(client_of(sentinel, password=self.sentinel_password or None))
        )

    def primary(self) -> ValkeyServer:
        """Return the server that the first sentinel calls the primary."""
        (port,) = self._named(self.sentinels[0])
        return next(server for server in self.servers if server.port == port)

    def all_name(self, server: ValkeyServer) -> bool:
        """Return whether every sentinel calls this server the primary; they hear of it one after another."""
        return {port for sentinel in self.sentinels for port in self._named(sentinel)} == {server.port}

    def replica(self) -> ValkeyServer:
        """Return the other one."""
        primary = self.primary()
        return next(server for server in self.servers if server is not primary)

    def replicates(self, server: ValkeyServer) -> bool:
        """Return whether a server follows another one, and has all that it has."""
        state = self.client(server).info("replication")
        return state["role"] == "slave" and state["master_link_status"] == "up"

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            primary, replica = [starting.enter_context(server) for server in self.servers]
            with closing(client_of(replica, password=self.password or None)) as client:
                client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
                until(lambda: client.info("replication")["master_link_status"] == "up", 30, "the replica")
            lines = [f'sentinel auth-pass {SERVICE} "{self.password}"'] if self.password else []
            if self.sentinel_password:
                lines += [f'requirepass "{self.sentinel_password}"']
            for _ in range(3):
                self.sentinels.append(starting.enter_context(SentinelServer(primary, *lines)))
            self._exits = starting.pop_all()
        for sentinel in self.sentinels:
            until(lambda sentinel=sentinel: self._knows_all(sentinel), 30, "the sentinels to know each other")
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _named(self, sentinel: SentinelServer) -> set[int]:
        answer = self.asked(sentinel).execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return {int(answer[1])}

    def _knows_all(self, sentinel: SentinelServer) -> bool:
        client = self.asked(sentinel)
        others = client.execute_command("SENTINEL", "SENTINELS", SERVICE)
        replicas = client.execute_command("SENTINEL", "REPLICAS", SERVICE)
        return len(others) == 2 and len(replicas) == 1


class Rotating(redis.CredentialProvider):
    """Tells user and password when they are needed, as where passwords change every few minutes."""

    def get_credentials(self) -> tuple[str, str]:
        """Tell them."""
        return "rotating", "secret"
