"""A Redis store whose scripts go by a clock of the test's, not by the server's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singleflight.stores.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable


class ClockedRedisStore(RedisStore):
    """Keys still expire by the server's own clock: what a test's clock makes over must be deleted."""

    def __init__(self, url: str, *, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(url, **options)
        self._clock = clock

    def _test_clock(self) -> int:
        return round(self._clock() * 1_000_000)
