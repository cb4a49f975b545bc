"""Stores that go by a clock of the test's, not by the server's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import literal

from singleflight.stores.redis import RedisStore
from singleflight.stores.sql import SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable


class ClockedRedisStore(RedisStore):
    """Keys still expire by the server's own clock: what a test's clock makes over must be deleted."""

    def __init__(self, url: str, *, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(url, **options)
        self._clock = clock

    def _test_clock(self) -> int:
        return round(self._clock() * 1_000_000)


class ClockedSqlStore(SqlStore):
    """A SQL store that goes by a clock of the test's, not by the database's."""

    def __init__(self, url: str, *, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(url, **options)
        self._test_clock = clock

    def _clock(self) -> Any:
        return literal(round(self._test_clock() * 1_000_000))
