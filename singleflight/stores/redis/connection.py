"""Connections to Redis: clients that send a command to the server which has its key, within a bounded time.

A command is EVALSHA or EVAL on one key, which is its fourth word, or BLPOP on one key. Many commands at once
take one round trip to each server, and an exception among their answers concerns that one command.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import redis
from redis.crc import key_slot

from singleflight.lease import monotonic
from singleflight.stores.redis.errors import code_of, driver
from singleflight.stores.redis.options import limited_to
from singleflight.stores.redis.wire import ask, ask_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from singleflight.stores.redis.wire import Command

    Node = tuple[str, int]

ELSEWHERE = ("MOVED", "ASK")
"""Codes of a node that does not have the key: another one has, or is just getting it."""

REDIRECTIONS = 5
"""How often one command is sent on: once while a slot moves, once more for each move meanwhile."""


class Connection:
    """To one server; which one that is may change from one connection to the next.

    Args:
        client: a redis-py client whose connections wait at most ``timeout`` seconds.
        replicas: how many replicas must have acknowledged what `run` and `run_all` are asked to make sure of.
    """

    def __init__(self, client: Any, timeout: float, replicas: int = 0) -> None:
        self._client = client
        self._timeout = timeout
        self._replicas = replicas

    def run(self, command: Command, *, sure: bool = False, asking: bool = False) -> Any:
        """Send one command; ``sure`` waits for replicas if any are asked for."""
        if asking or (sure and self._replicas):
            answer = self.run_all([command], asking=asking)[0]
            if isinstance(answer, Exception):
                raise answer
            return answer
        return ask(self._client.connection_pool, command)

    def run_all(self, commands: Sequence[Command], *, asking: bool = False) -> list[Any]:
        """Send many commands and wait for replicas; an answer may be an exception.

        ``asking`` says to a node of a cluster that it is to answer although the key is still moving there.
        """
        wanted = [one for command in commands for one in ((("ASKING",), command) if asking else (command,))]
        if self._replicas:
            # Half of the time, or the connection would give up before the server does.
            wanted.append(("WAIT", self._replicas, max(1, round(self._timeout * 500))))
        answers = ask_all(self._client.connection_pool, wanted)
        if self._replicas:
            had = answers.pop()
            if isinstance(had, Exception):
                raise had
            if had < self._replicas:
                few = TooFewReplicas(f"{had} of {self._replicas} replicas have it")
                answers = [answer if isinstance(answer, Exception) else few for answer in answers]
        return answers[1::2] if asking else answers

    def primaries(self) -> list[Any]:
        """Return a client of each server that holds keys."""
        return [self._client]

    def drop(self) -> None:
        """Trust no open connection any more, but those that other threads use right now."""
        self._client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close all connections."""
        self._client.connection_pool.disconnect()


class ClusterConnection:
    """To a cluster: each command goes to the node that has the key's slot, and follows it when it moves.

    redis-py's own client for clusters retries and pauses as it sees fit; a lease must know in time.
    """

    def __init__(
        self, nodes: Sequence[Node], options: Mapping[str, Any], timeout: float, replicas: int = 0
    ) -> None:
        self._nodes = tuple(nodes)
        self._seeds = list(nodes)
        self._options = options
        self._timeout = timeout
        self._replicas = replicas
        self._connections: dict[Node, Connection] = {}
        self._slots: dict[int, Node] = {}

    def run(self, command: Command, *, sure: bool = False) -> Any:
        """Send one command to its node, and on to where that node says."""
        node, asking = self._home(command), False
        for _ in range(REDIRECTIONS):
            try:
                return self._connection(node).run(command, sure=sure, asking=asking)
            except driver.ResponseError as error:
                if code_of(error) not in ELSEWHERE:
                    raise
                node, asking = self._redirected(error, node)
        raise driver.ConnectionError("its nodes send the request back and forth")

    def run_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send each node its commands at once; those that are redirected follow one by one."""
        places: dict[Node, list[int]] = defaultdict(list)
        for place, command in enumerate(commands):
            places[self._home(command)].append(place)
        answers: list[Any] = [None] * len(commands)
        for node, mine in places.items():
            try:
                got: list[Any] = self._connection(node).run_all([commands[place] for place in mine])
            except (driver.ConnectionError, driver.TimeoutError) as error:
                # The leases on the other nodes are none the worse.
                self.drop()
                got = [error] * len(mine)
            for place, answer in zip(mine, got, strict=True):
                answers[place] = self._follow(commands[place], answer)
        return answers

    def primaries(self) -> list[Any]:
        """Return a client of each node that holds keys."""
        return [self._connection(node).primaries()[0] for node in sorted(set(self._learn().values()))]

    def drop(self) -> None:
        """Trust neither open connections nor what is known of the slots."""
        self._slots = {}
        for connection in list(self._connections.values()):
            connection.drop()

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections.values()):
            connection.close()

    def _connection(self, node: Node) -> Connection:
        connection = self._connections.get(node)
        if connection is None:
            options = {**self._options, "host": node[0], "port": node[1]}
            connection = self._connections.setdefault(
                node, Connection(client_of(options, self._timeout), self._timeout, self._replicas)
            )
        return connection

    def _home(self, command: Command) -> Node:
        slot, slots = key_slot(str(command[1 if command[0] == "BLPOP" else 3]).encode()), self._slots
        if slot not in slots:
            slots = self._learn()
        try:
            return slots[slot]
        except KeyError:
            raise driver.ConnectionError(f"no node serves slot {slot}") from None

    def _learn(self) -> dict[int, Node]:
        """Ask the nodes, until one knows, who serves which slots; whoever fails is asked last from now on."""
        trouble: Exception = driver.ConnectionError("no node of the cluster is known")
        deadline = monotonic() + self._timeout
        for node in [*self._seeds]:
            try:
                ranges = self._connection(node).primaries()[0].execute_command("CLUSTER", "SLOTS")
            except (driver.ConnectionError, driver.TimeoutError, driver.ResponseError) as error:
                trouble, ranges = error, []
            slots: dict[int, Node] = {}
            for first, last, *servers in ranges:
                # The first is the primary; one that does not know its own name has none.
                (host, port, *_), *_ = servers
                slots.update(dict.fromkeys(range(first, last + 1), (_text(host) or node[0], port)))
            if slots:
                self._know(slots)
                return slots
            self._seeds = [*(other for other in self._seeds if other != node), node]
            if monotonic() >= deadline:
                break  # the next request asks the next ones
        raise trouble

    def _know(self, slots: dict[int, Node]) -> None:
        """Take over who serves which slots, and forget whoever is in the cluster no more."""
        self._slots = slots
        serving = dict.fromkeys(slots.values())
        self._seeds = [*serving, *(node for node in self._nodes if node not in serving)]
        for node in [*self._connections]:
            if node not in self._seeds:
                self._connections.pop(node).drop()

    def _redirected(self, error: Exception, asked: Node) -> tuple[Node, bool]:
        """Return where an answer such as "MOVED 3999 host:6379" sends us, and whether to say ASKING there."""
        *_, slot, place = str(error).split()
        host, _, port = place.rpartition(":")
        node = (host or asked[0], int(port))
        moved = code_of(error) == "MOVED"
        if moved:
            self._slots[int(slot)] = node
        return node, not moved

    def _follow(self, command: Command, answer: Any) -> Any:
        """Return the answer from where the command was sent on to."""
        if not isinstance(answer, Exception) or code_of(answer) not in ELSEWHERE:
            return answer
        try:
            return self.run(command, sure=True)  # asks the same node again, and follows it this time
        except driver.RedisError as error:
            return error


class TooFewReplicas(redis.RedisError):
    """Raised when a write is not on as many replicas as were asked for."""


def client_of(options: Mapping[str, Any], timeout: float) -> Any:
    """Return a client of one server with a pool of its own."""
    return redis.Redis(connection_pool=redis.ConnectionPool(**limited_to(options, timeout)))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
