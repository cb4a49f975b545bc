"""The least rights of a Redis or Valkey user: which commands, on which keys."""

from __future__ import annotations

from singleflight.stores.optional import OPERATORS, WORKERS

COMMANDS = (
    "evalsha",
    "eval",
    "time",
    "get",
    "set",
    "pexpire",
    "persist",
    "pttl",
    "exists",
    "rpush",
    "blpop",
    "hdel",
    "hget",
    "hkeys",
    "hlen",
    "hmget",
    "hset",
    "hvals",
    "zadd",
    "zcard",
    "zrange",
    "zrangebyscore",
    "zrem",
    "zscore",
    "zunionstore",
)
"""All that a restricted user must be allowed, on the keys of the prefix."""

IN_A_CLUSTER = ("cluster|slots", "asking")


def instructions(prefix: str, *, cluster: bool, replicas: bool) -> list[str]:
    """Return how users for workers and operators are made; with ``replicas``, a write waits for some."""
    commands = (*COMMANDS, *(IN_A_CLUSTER if cluster else ()), *(("wait",) if replicas else ()))
    user = f"on >PASSWORD ~{prefix}:* resetchannels -@all {' '.join(f'+{name}' for name in commands)}"
    return [
        f"# {WORKERS}",
        f"ACL SETUSER singleflight {user}",
        f"# {OPERATORS}",
        f"ACL SETUSER operator {user} +scan +info +config|get",
    ]
