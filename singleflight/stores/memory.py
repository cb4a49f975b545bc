"""Leases in this process's memory: for tests, and for programs of one process.

A record is a `Record` and the moment it is forgotten, in a dictionary behind one lock:
1. take the lock and read the clock; 2. forget the record if its life is over; 3. let
`singleflight.stores.record_rules` decide; 4. write what it returns.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from singleflight.stores.base import REMEMBER
from singleflight.stores.deciding_line import DecidingLine
from singleflight.stores.memory_line import Index, MemoryLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from singleflight.stores.base import Record
    from singleflight.stores.deciding import Answer
    from singleflight.stores.line import Entry


class MemoryStore(DecidingLine):
    """A `Store` for one process; safe to use from any thread.

    Args:
        clock: what the store goes by, epoch seconds; `singleflight.testing.FakeClock` in tests.
        remember: seconds for which an ended run is recognised.
    """

    counts_refusals = True

    def __init__(self, *, clock: Callable[[], float] = time.time, remember: float = REMEMBER) -> None:
        super().__init__(remember=remember)
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[str, tuple[Record, int]] = {}
        self._lines: dict[str, MemoryLine] = {}
        self._index = Index()
        self._tidy_at = 64

    def __reduce__(self) -> Any:
        """Refuse to be sent to another process, which would get a store of its own.

        Raises:
            TypeError: always.
        """
        raise TypeError("a memory store serves one process")

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 0, remember: float = REMEMBER) -> MemoryStore:
        """Return the store of ``memory://name``: one per name and process; nothing here can time out."""
        del timeout
        with _named_lock:
            return _named.setdefault(url.partition("://")[2].rstrip("/"), cls(remember=remember))

    def change(
        self, key: str, decide: Callable[[Record | None, int], tuple[Record | None, Answer]]
    ) -> Answer:
        """See `DecidingStore.change`."""
        with self._lock:
            return self._change(key, decide)

    def change_line(
        self, key: str, decide: Callable[[Record | None, MemoryLine, int], tuple[Record | None, Answer]]
    ) -> Answer:
        """See `DecidingLine.change_line`."""
        with self._lock:
            line = self._lines.get(key) or MemoryLine(key, self._index)
            answer = self._change(key, lambda found, now_us: decide(found, line, now_us))
            self._lines[key] = line
            if not line.entries:
                del self._lines[key]
            return answer

    def read_line(self, key: str, most: int) -> tuple[int, Sequence[Entry], int]:
        """See `DecidingLine.read_line`."""
        with self._lock:
            line = self._lines.get(key) or MemoryLine(key, self._index)
            return len(line.entries), line.listed(most), self._now_us() // 1000

    def due_keys(self, homes: Sequence[str], most: int) -> tuple[list[str], int | None]:
        """See `DecidingLine.due_keys`."""
        with self._lock:
            return self._index.due(homes, self._now_us() // 1000, most)

    def read(self, key: str) -> tuple[Record | None, int, int]:
        """See `DecidingStore.read`."""
        with self._lock:
            now_ms = self._now_us() // 1000
            record = self._find(key, now_ms)
            return record, self._records[key][1] if record else 0, now_ms

    def scan(self, prefix: str) -> Iterator[str]:
        """See `Listing.scan`."""
        with self._lock:
            now_ms = self._now_us() // 1000
            alive = [key for key, (_, ends_ms) in self._records.items() if ends_ms > now_ms]
        return (key for key in alive if key.startswith(f"{prefix}:"))

    def close(self) -> None:
        """Nothing to close; what is remembered stays."""

    def _change(
        self, key: str, decide: Callable[[Record | None, int], tuple[Record | None, Answer]]
    ) -> Answer:
        now_us = self._now_us()
        now_ms = now_us // 1000
        changed, answer = decide(self._find(key, now_ms), now_us)
        if changed is not None:
            self._records[key] = (changed, self.life_ends(changed, now_us))
            self._tidy(now_ms)
        return answer

    def _find(self, key: str, now_ms: int) -> Record | None:
        record, ends_ms = self._records.get(key, (None, 0))
        if ends_ms <= now_ms:
            # For good: a clock that steps back afterwards brings nothing back.
            self._records.pop(key, None)
            return None
        return record

    def _now_us(self) -> int:
        return round(self._clock() * 1_000_000)

    def _tidy(self, now_ms: int) -> None:
        """Forget what is over whenever the records have doubled: cheap per write, bounded in all."""
        if len(self._records) < self._tidy_at:
            return
        self._records = {key: kept for key, kept in self._records.items() if kept[1] > now_ms}
        self._tidy_at = max(64, 2 * len(self._records))


# The one piece of global state: `memory://name` means the same store all over a process.
_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()
