"""Leases in Redis and Valkey."""

from singleflight.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
