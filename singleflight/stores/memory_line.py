"""The line of one key in this process's memory; behind the lock of its store."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import replace
from typing import TYPE_CHECKING

from singleflight.stores.line import NEVER
from singleflight.stores.lining import Kind, Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.stores.line import Entry

AT_ONCE = 64
"""How many of those that are due, or hailed, one operation sees."""


class Index:
    """When which key must be looked at: its moments by home."""

    def __init__(self) -> None:
        self.moments: dict[str, dict[str, int]] = {}
        self.looked_ms = 0

    def put(self, home: str, key: str, moment_ms: int, *, exact: bool) -> None:
        """See `Line.index`."""
        keys = self.moments.setdefault(home, {})
        if moment_ms == NEVER:
            keys.pop(key, None)
        else:
            keys[key] = moment_ms if exact else min(keys.get(key, moment_ms), moment_ms)

    def due(self, homes: Sequence[str], now_ms: int, most: int) -> tuple[list[str], int | None]:
        """See `DecidingLine.due_keys`."""
        if now_ms < self.looked_ms:
            self.moments = {home: dict.fromkeys(keys, 1) for home, keys in self.moments.items()}
        self.looked_ms = now_ms
        moments = [(at, key) for home in homes for key, at in self.moments.get(home, {}).items()]
        later = min((at for at, _ in moments if at > now_ms), default=None)
        due = dict.fromkeys(key for at, key in sorted(moments) if at <= now_ms)
        return list(due)[:most], None if later is None else later - now_ms


class MemoryLine:
    """A `Line`, and the messages in it."""

    def __init__(self, key: str, index: Index) -> None:
        self._key, self._index = key, index
        self.entries: dict[str, Entry] = {}
        self._messages: dict[str, bytes] = {}
        self._ready: dict[bool, list[tuple[int, str]]] = {False: [], True: []}
        self._by_standing: dict[Standing, dict[str, None]] = {standing: {} for standing in Standing}
        self._moments: list[tuple[int, str]] = []

    def find(self, run_id: str) -> Entry | None:
        """See `Line.find`."""
        return self.entries.get(run_id)

    def first(self, *, begun: bool) -> Entry | None:
        """See `Line.first`."""
        ready = self._ready[begun]
        return self.entries[ready[0][1]] if ready else None

    def of(self, standing: Standing) -> Sequence[Entry]:
        """See `Line.of`."""
        return [self.entries[run] for run in self._by_standing[standing]]

    def listed(self, most: int | None = None) -> Sequence[Entry]:
        """See `Line.listed`."""
        return sorted(self.entries.values(), key=lambda entry: entry.order)[:most]

    def due(self, now_ms: int) -> Sequence[Entry]:
        """See `Line.due`."""
        return [self.entries[run] for at, run in self._moments[:AT_ONCE] if at <= now_ms]

    def next_moment(self) -> int:
        """See `Line.next_moment`."""
        return self._moments[0][0] if self._moments else NEVER

    def message(self, run_id: str) -> bytes:
        """See `Line.message`."""
        return self._messages[run_id]

    def put(self, entry: Entry, message: bytes | None = None) -> None:
        """See `Line.put`."""
        self._take_out(entry.run_id)
        self.entries[entry.run_id] = entry
        if entry.standing is Standing.READY:
            insort(self._ready[entry.begun], (entry.order, entry.run_id))
        else:
            self._by_standing[entry.standing][entry.run_id] = None
        if entry.moment_ms:
            insort(self._moments, (entry.moment_ms, entry.run_id))
        if not entry.size:
            self._messages.pop(entry.run_id, None)
        elif message is not None:
            self._messages[entry.run_id] = message

    def remove(self, entry: Entry) -> None:
        """See `Line.remove`."""
        self._take_out(entry.run_id)
        self._messages.pop(entry.run_id, None)

    def wake(self) -> None:
        """See `Line.wake`."""
        for entry in self.of(Standing.OUTSIDE):
            if entry.kind is Kind.JOINING:
                self.put(replace(entry, moment_ms=1))

    def rewind(self) -> None:
        """See `Line.rewind`."""
        for entry in list(self.entries.values()):
            self.put(replace(entry, moment_ms=1))

    def index(self, home: str, moment_ms: int, *, exact: bool) -> None:
        """See `Line.index`."""
        self._index.put(home, self._key, moment_ms, exact=exact)

    def _take_out(self, run: str) -> None:
        before = self.entries.pop(run, None)
        if before is None:
            return
        if before.standing is Standing.READY:
            ready = self._ready[before.begun]
            del ready[bisect_left(ready, (before.order, run))]
        else:
            del self._by_standing[before.standing][run]
        if before.moment_ms:
            del self._moments[bisect_left(self._moments, (before.moment_ms, run))]
