"""Leases in SQL databases."""

from singleflight.stores.sql.store import SqlStore

__all__ = ["SqlStore"]
