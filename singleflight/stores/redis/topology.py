"""Where in Redis leases are kept: one server, the primary that sentinels name, or a cluster.

| URL                                       | topology                                              |
| ----------------------------------------- | ---------------------------------------------------- |
| ``redis://user:password@host:6379/0``     | a server; ``rediss`` by TLS, ``unix`` by its socket  |
| ``redis+sentinel://host:26379,…/name/0``  | sentinels; ``rediss+sentinel``: they and it by TLS   |
| ``sentinel://host:26379/0;sentinel://…``  | the same as Celery writes it, with ``master_name``   |
| ``redis+cluster://host:6379,…``           | a cluster, by some of its nodes; ``rediss+cluster``  |
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis import connection, sentinel

from singleflight.errors import ConfigurationError
from singleflight.stores.redis.connection import ClusterConnection, Connection, client_of
from singleflight.stores.redis.options import (
    address,
    limited_to,
    options_from_pool,
    options_from_url,
    reaching,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from urllib.parse import SplitResult

    from singleflight.stores.redis.connection import Node

SENTINEL_PORT, PORT = 26379, 6379
OF_SENTINELS = "sentinel_"
"""What URL options about the sentinels themselves begin with, such as ``sentinel_password``."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server."""

    options: Mapping[str, Any]
    min_replicas: int = 0

    @property
    def address(self) -> str:
        """Where it is, without user and password."""
        return address(self.options)

    def connection(self, timeout: float) -> Connection:
        """Open a connection on which nothing waits longer than ``timeout`` seconds."""
        return Connection(client_of(self.options, timeout), timeout, self.min_replicas)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Whichever server the sentinels call the primary of a service; they are asked for each connection."""

    nodes: tuple[Node, ...]
    service: str
    options: Mapping[str, Any]
    sentinel_options: Mapping[str, Any] = field(default_factory=dict)
    min_other_sentinels: int = 0
    min_replicas: int = 0

    @property
    def address(self) -> str:
        """Whom to ask for it."""
        return f"{self.service} of sentinels {_listed(self.nodes)}/{self.options.get('db') or 0}"

    def connection(self, timeout: float) -> Connection:
        """Open a connection; of sentinels that hang, all together take at most ``timeout`` seconds more."""
        own = limited_to(self.sentinel_options, timeout / len(self.nodes))
        own["ssl"] = _by_tls(own)
        own.pop("connection_class", None)  # redis.Redis wants `ssl` instead
        make_manager: Any = sentinel.Sentinel  # redis-py does not say what these take
        make_pool: Any = sentinel.SentinelConnectionPool
        asked = make_manager(self.nodes, min_other_sentinels=self.min_other_sentinels, sentinel_kwargs=own)
        options = limited_to(self.options, timeout)
        options["connection_class"] = (
            sentinel.SentinelManagedSSLConnection if _by_tls(options) else sentinel.SentinelManagedConnection
        )
        pool = make_pool(self.service, asked, **options)
        return Connection(redis.Redis(connection_pool=pool), timeout, self.min_replicas)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, of which some nodes are known."""

    nodes: tuple[Node, ...]
    options: Mapping[str, Any]
    min_replicas: int = 0

    @property
    def address(self) -> str:
        """Where some of its nodes are."""
        return f"cluster {_listed(self.nodes)}"

    def connection(self, timeout: float) -> ClusterConnection:
        """Open a connection on which no node is waited for longer than ``timeout`` seconds."""
        return ClusterConnection(self.nodes, self.options, timeout, self.min_replicas)


Topology = Server | Sentinels | Cluster


def topology_from_url(url: str, **more: Any) -> Topology:
    """Return the topology that a URL names.

    ``more`` are options as they could stand in the URL, or objects for TLS.

    Raises:
        ConfigurationError: for an option that no topology has, or a URL that cannot be read.
    """
    try:
        parts = [urlsplit(one) for one in url.split(";")]
    except ValueError as error:
        raise ConfigurationError(f"the URL of the store cannot be read: {error}") from error
    scheme, given = parts[0].scheme, dict(pair for part in parts for pair in parse_qsl(part.query)) | more
    replicas = _whole(given, "min_replicas")
    if scheme.endswith("sentinel"):
        return _sentinels(parts, given, replicas)
    if scheme.endswith("+cluster"):
        if (path := parts[0].path.strip("/")) not in ("", "0"):
            raise ConfigurationError(f"a cluster has no database {path!r}: end the store's URL at its hosts")
        options = _options(scheme, parts[0].netloc.partition(",")[0], "", given)
        return Cluster(_nodes(parts, PORT), _without_host(options), replicas)
    return Server(_options(scheme, parts[0].netloc, parts[0].path, given), replicas)


def topology_from_client(client: Any) -> Topology:
    """Return the topology that a ready redis-py or valkey-py client talks to.

    Raises:
        ConfigurationError: for an object that is no such client.
    """
    if inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
        raise ConfigurationError(
            f"{type(client).__module__}.{type(client).__qualname__} is a client for asyncio, and leases open "
            "connections of their own: pass its URL, such as redis://host:6379/0, or a redis.Redis"
        )
    nodes = getattr(client, "nodes_manager", None)
    if nodes is not None:
        known = tuple((node.host, node.port) for node in nodes.startup_nodes.values())
        return Cluster(known, _without_host(reaching(nodes.connection_kwargs)))
    pool = getattr(client, "connection_pool", None)
    if pool is None or not isinstance(getattr(pool, "connection_kwargs", None), dict):
        raise ConfigurationError(
            f"{type(client).__module__}.{type(client).__qualname__} is no client of Redis: "
            "pass a redis.Redis or a redis.RedisCluster, or a URL such as redis://host:6379/0"
        )
    options = options_from_pool(pool)
    if (asked := getattr(pool, "sentinel_manager", None)) is None:
        return Server(options)
    if not getattr(pool, "is_master", True):
        raise ConfigurationError("leases cannot be kept on a replica: pass the client of Sentinel.master_for")
    pools = [one.connection_pool for one in asked.sentinels]
    return Sentinels(
        tuple((one.connection_kwargs["host"], one.connection_kwargs["port"]) for one in pools),
        pool.service_name,
        _without_host(options),
        _without_host(options_from_pool(pools[0])),
        asked.min_other_sentinels,
    )


def _sentinels(parts: Sequence[SplitResult], given: dict[str, Any], replicas: int) -> Sentinels:
    scheme, path = parts[0].scheme, parts[0].path
    service = str(given.pop("master_name", ""))
    if "+" in scheme:
        name, _, database = path.strip("/").partition("/")
        service, path = name or service, f"/{database}"
    if not service:
        raise ConfigurationError(
            "the store's URL names sentinels, but not whose primary they are to name: write "
            "redis+sentinel://host:26379/mymaster, or give master_name, in Celery as a transport option"
        )
    others = _whole(given, "min_other_sentinels")
    names = [name for name in given if name.startswith(OF_SENTINELS)]
    own = {name.removeprefix(OF_SENTINELS): given.pop(name) for name in names}
    own |= own.pop("kwargs", None) or {}
    if scheme == "rediss+sentinel":
        own = {name: value for name, value in given.items() if name.startswith("ssl_")} | own | {"ssl": True}
    options = _options(scheme, parts[0].netloc.partition(",")[0], path, given)
    asking = _without_host(_options("redis", "", "", own))
    return Sentinels(_nodes(parts, SENTINEL_PORT), service, _without_host(options), asking, others, replicas)


def _nodes(parts: Sequence[SplitResult], port: int) -> tuple[Node, ...]:
    hosts = [urlsplit(f"//{host}") for part in parts for host in part.netloc.split(",")]
    try:
        return tuple((host.hostname or "localhost", host.port or port) for host in hosts)
    except ValueError as error:
        raise ConfigurationError(f"a host in the store's URL cannot be read: {error}") from error


def _options(scheme: str, netloc: str, path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the connection options of a URL's plain form; texts are read as the URL's own, objects kept."""
    plain = "redis" if scheme == "sentinel" else scheme
    if plain.endswith(("+sentinel", "+cluster")):
        plain = plain.partition("+")[0]
    query = urlencode({name: value for name, value in given.items() if isinstance(value, str)})
    objects = {name: value for name, value in given.items() if not isinstance(value, str)}
    return options_from_url(f"{plain}://{netloc}{path}?{query}", **objects)


def _whole(given: dict[str, Any], name: str) -> int:
    value = given.pop(name, 0)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ConfigurationError(f"{name}={value!r} must be a whole number, 0 or more")
    return number


def _by_tls(options: Mapping[str, Any]) -> bool:
    return issubclass(options.get("connection_class", connection.Connection), connection.SSLConnection)


def _without_host(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("host", "port")}


def _listed(nodes: Sequence[Node]) -> str:
    return ",".join(f"{host}:{port}" for host, port in nodes)
