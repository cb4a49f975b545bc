"""What `doctor` asks a Redis or Valkey server besides: may it forget, is it the primary, is it new enough."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from singleflight.cli.doctor.findings import Finding, Level
from singleflight.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Ask = Callable[[Callable[[Any], Any]], Any]

OLDEST = (6, 2)


def of_servers(servers: Mapping[str, Ask]) -> Iterator[Finding]:
    """Look at the servers behind `RedisStore.servers`; what all have in common is said once."""
    found: dict[Finding, list[str]] = {}
    for address, ask in servers.items():
        for finding in _of_server(ask):
            found.setdefault(finding, []).append(address)
    for finding, where in found.items():
        if len(where) == len(servers):
            yield finding
        else:
            yield replace(finding, what=f"{', '.join(where)}: {finding.what}")


def _of_server(ask: Ask) -> Iterator[Finding]:
    """Look at one; what the user may not see is said, and that is all."""
    try:
        info: dict[str, Any] = ask(lambda client: client.info())
    except ConfigurationError as error:
        text = "INFO is not allowed, so version, role, eviction and persistence are unknown"
        yield Finding(Level.WARNING, f"{text} ({error})", "grant +info to whoever runs doctor")
        return
    yield _version(info)
    yield _role(info)
    yield _eviction(info)
    yield from _persistence(info, ask)
    yield from _replicas(info)


def _version(info: dict[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    text = str(info.get("valkey_version") or info.get("redis_version", "?"))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return Finding(Level.ERROR, f"{name} {text} is too old", "upgrade to Redis 6.2 or newer, or Valkey")
    return Finding(Level.OK, f"{name} {text}")


def _role(info: dict[str, Any]) -> Finding:
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        return Finding(Level.ERROR, "the address is a replica's", f"give the primary's, now {primary}")
    return Finding(Level.OK, "the server is a primary")


def _eviction(info: dict[str, Any]) -> Finding:
    policy, limit = info.get("maxmemory_policy", "?"), int(info.get("maxmemory", 0))
    if policy == "noeviction":
        return Finding(Level.OK, "no key is evicted (noeviction)")
    what = f"maxmemory-policy is {policy}: a full server forgets leases, and two runs of a key may start"
    remedy = "CONFIG SET maxmemory-policy noeviction, or keep leases in a server of their own"
    # Without a limit nothing is evicted, until somebody sets one.
    return Finding(Level.ERROR if limit else Level.WARNING, what, remedy)


def _persistence(info: dict[str, Any], ask: Ask) -> Iterator[Finding]:
    if info.get("aof_enabled"):
        yield Finding(Level.OK, "the server writes an append-only file")
        return
    try:
        saves = ask(lambda client: client.config_get("save"))
    except ConfigurationError as error:
        text = f"no append-only file, and CONFIG GET is not allowed, so snapshots are unknown ({error})"
        yield Finding(Level.WARNING, text, "grant +config|get to whoever runs doctor")
        return
    if any(saves.values()):
        what = "snapshots only: a crash of the server forgets what came after the last one"
    else:
        what = "no persistence: a restart of the server forgets all leases, and which runs have ended"
    yield Finding(
        Level.WARNING,
        f"{what}; live holders write theirs back, but a copy of an ended run may start again",
        "CONFIG SET appendonly yes",
    )


def _replicas(info: dict[str, Any]) -> Iterator[Finding]:
    if count := int(info.get("connected_slaves", 0)):
        yield Finding(
            Level.WARNING,
            f"{count} replicas, which follow with a delay: a failover may forget the newest leases",
            "guard what must never happen twice with the fence (current_lease().fence)",
        )
