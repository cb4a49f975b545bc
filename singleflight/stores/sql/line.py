"""The line of a key in a database: one row for each who waits, one for each home that must look at the key.

Nothing here locks. What is read is true if the record's row, which every change of the line writes with a new
revision, is still at the revision that was read before; `SqlLine.write` comes after that is sure, in the same
transaction. Until then, what is to be written is kept here, and goes before what the database has.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, delete, func, insert, select, update

from singleflight.stores.line import NEVER, Entry
from singleflight.stores.lining import Kind, Standing
from singleflight.stores.sql.tables import moments, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import ColumnElement
    from sqlalchemy.engine import Connection

AT_ONCE = 64
"""How many of those that are due, or hailed, one operation sees."""

FEW = 8
"""How many of those who are ready are read at once: one is called, and few are changed before."""


class SqlLine:
    """A `Line` that reads rows as they are asked for, and writes them when it is told to."""

    def __init__(self, connection: Connection, key: str) -> None:
        self._connection, self._key = connection, key
        self._changed: dict[str, Entry | None] = {}
        self._messages: dict[str, bytes] = {}
        self._index: dict[str, tuple[int, bool]] = {}
        self._found: dict[str, Entry | None] = {}
        self._by_standing: dict[Standing, list[Entry]] = {}
        self._due: list[Entry] | None = None

    def find(self, run_id: str) -> Entry | None:
        """See `Line.find`."""
        if run_id in self._changed:
            return self._changed[run_id]
        if run_id not in self._found:
            rows = self._read(waiting.c.run == _short(run_id), most=1)
            self._found[run_id] = rows[0] if rows else None
        return self._found[run_id]

    def first(self, *, begun: bool) -> Entry | None:
        """See `Line.first`."""
        ready = and_(waiting.c.standing == Standing.READY, waiting.c.begun.is_(begun))
        most = FEW + len(self._changed)
        stored = self._read(ready, most=most)
        mine = self._mine(lambda entry: entry.standing is Standing.READY and entry.begun is begun)
        return min((*self._untouched(stored), *mine), key=lambda entry: entry.order, default=None)

    def of(self, standing: Standing) -> Sequence[Entry]:
        """See `Line.of`."""
        if standing not in self._by_standing:
            self._by_standing[standing] = self._read(waiting.c.standing == standing)
        stored = self._untouched(self._by_standing[standing])
        return [*stored, *self._mine(lambda entry: entry.standing is standing)]

    def listed(self, most: int | None = None) -> Sequence[Entry]:
        """See `Line.listed`."""
        return self._read(most=most)

    def due(self, now_ms: int) -> Sequence[Entry]:
        """See `Line.due`."""
        if self._due is None:
            when = and_(waiting.c.moment_ms > NEVER, waiting.c.moment_ms <= now_ms)
            self._due = self._read(when, by=waiting.c.moment_ms)
        mine = self._mine(lambda entry: NEVER < entry.moment_ms <= now_ms)
        return [*self._untouched(self._due), *mine]

    def next_moment(self) -> int:
        """See `Line.next_moment`."""
        least = select(func.min(waiting.c.moment_ms)).where(
            waiting.c.lease_key == self._key,
            waiting.c.moment_ms > NEVER,
            waiting.c.run.not_in(list(map(_short, self._changed))),
        )
        stored: int | None = self._connection.execute(least).scalar_one()
        moments = [entry.moment_ms for entry in self._mine(lambda entry: entry.moment_ms > NEVER)]
        if stored:
            moments.append(stored)
        return min(moments, default=NEVER)

    def message(self, run_id: str) -> bytes:
        """See `Line.message`."""
        if run_id in self._messages:
            return self._messages[run_id]
        where = (waiting.c.lease_key == self._key, waiting.c.run == _short(run_id))
        return bytes(self._connection.execute(select(waiting.c.message).where(*where)).scalar_one())

    def put(self, entry: Entry, message: bytes | None = None) -> None:
        """See `Line.put`."""
        self._changed[entry.run_id] = entry
        if not entry.size:
            self._messages.pop(entry.run_id, None)
        elif message is not None:
            self._messages[entry.run_id] = message

    def remove(self, entry: Entry) -> None:
        """See `Line.remove`."""
        self._changed[entry.run_id] = None
        self._messages.pop(entry.run_id, None)

    def wake(self) -> None:
        """See `Line.wake`."""
        for entry in self.of(Standing.OUTSIDE):
            if entry.kind is Kind.JOINING:
                self.put(replace(entry, moment_ms=1))

    def rewind(self) -> None:
        """See `Line.rewind`."""
        for entry in self.listed():
            self.put(replace(entry, moment_ms=1))

    def index(self, home: str, moment_ms: int, *, exact: bool) -> None:
        """See `Line.index`."""
        self._index[home] = (moment_ms, exact)

    def write(self) -> None:
        """Write what has been changed."""
        for run_id, entry in self._changed.items():
            where = and_(waiting.c.lease_key == self._key, waiting.c.run == _short(run_id))
            if entry is None:
                self._connection.execute(delete(waiting).where(where))
                continue
            row = _row_of(entry)
            if run_id in self._messages:
                row["message"] = self._messages[run_id]
            elif not entry.size:
                row["message"] = None
            if not self._connection.execute(update(waiting).where(where).values(row)).rowcount:
                row |= {"lease_key": self._key, "run": _short(run_id)}
                self._connection.execute(insert(waiting).values(row))
        for home, (moment_ms, exact) in self._index.items():
            self._write_index(home, moment_ms, exact=exact)

    def _write_index(self, home: str, moment_ms: int, *, exact: bool) -> None:
        where = and_(moments.c.home == home, moments.c.lease_key == self._key)
        if moment_ms == NEVER:
            self._connection.execute(delete(moments).where(where))
            return
        earlier = case((moments.c.moment_ms < moment_ms, moments.c.moment_ms), else_=moment_ms)
        changed = update(moments).where(where).values(moment_ms=moment_ms if exact else earlier)
        if not self._connection.execute(changed).rowcount:
            row = {"home": home, "lease_key": self._key, "moment_ms": moment_ms}
            self._connection.execute(insert(moments).values(row))

    def _read(
        self, *where: ColumnElement[bool], most: int | None = AT_ONCE, by: Any = waiting.c.place
    ) -> list[Entry]:
        question = select(waiting.c.entry, waiting.c.moment_ms).where(
            waiting.c.lease_key == self._key, *where
        )
        rows = self._connection.execute(question.order_by(by).limit(most)).all()
        return [_entry_of(text, moment_ms) for text, moment_ms in rows]

    def _untouched(self, entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.run_id not in self._changed]

    def _mine(self, which: Callable[[Entry], bool]) -> list[Entry]:
        return [entry for entry in self._changed.values() if entry is not None and which(entry)]


def due_keys(
    connection: Connection, homes: Sequence[str], now_ms: int, most: int
) -> tuple[list[str], int | None]:
    """See `DecidingLine.due_keys`."""
    mine = moments.c.home.in_(homes)
    due = select(moments.c.lease_key).where(mine, moments.c.moment_ms <= now_ms)
    keys = connection.execute(due.order_by(moments.c.moment_ms).limit(most)).scalars().all()
    later = select(func.min(moments.c.moment_ms)).where(mine, moments.c.moment_ms > now_ms)
    next_ms: int | None = connection.execute(later).scalar_one()
    return list(dict.fromkeys(keys)), None if next_ms is None else next_ms - now_ms


def all_due(connection: Connection, homes: Sequence[str]) -> None:
    """Make every key of these homes due: the clock went back."""
    connection.execute(update(moments).where(moments.c.home.in_(homes)).values(moment_ms=1))


def _short(run_id: str) -> str:
    """Return what a run's row is found by: ids may be long, and differ in case only."""
    return hashlib.sha256(run_id.encode(errors="surrogatepass")).hexdigest()


def _row_of(entry: Entry) -> dict[str, Any]:
    return {
        "place": entry.order,
        "standing": entry.standing,
        "begun": entry.begun,
        "moment_ms": entry.moment_ms,
        "entry": json.dumps(asdict(entry), ensure_ascii=False),
    }


def _entry_of(text: str, moment_ms: int) -> Entry:
    values: dict[str, Any] = json.loads(text)
    values |= {
        "standing": Standing(values["standing"]),
        "kind": Kind(values["kind"]),
        "moment_ms": moment_ms,
    }
    return Entry(**values)
