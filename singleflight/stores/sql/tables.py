"""The tables of the SQL store and how a row is written: a row per lease, per run that waits, per ended run.

All instants that decide anything are epoch milliseconds on the database's clock. Those that people read
(``singleflight_runs``) are ISO texts in UTC: they sort, and no session's time zone changes them.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    exc,
    insert,
    update,
)
from sqlalchemy.dialects import mysql

from singleflight.lease import Holder
from singleflight.stores.base import RECORD_VERSION, Record, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection, RowMapping

    from singleflight.stores.base import Release

SCHEMA_VERSION = 2
"""Of the tables; kept in ``singleflight_schema``."""

# MySQL and MariaDB compare text without regard to case unless told otherwise, and cut it at 64 kB.
_key = String(255).with_variant(
    mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
_text = Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")

_KINDS: dict[type, Any] = {str: _text, tuple: _text, int: BigInteger, bool: Boolean}

metadata = MetaData()

leases = Table(
    "singleflight_leases",
    metadata,
    Column("lease_key", _key, primary_key=True),
    # Drawn anew for every write, so that a row which was purged and made again is not taken for the old one.
    Column("revision", BigInteger, nullable=False),
    Column("forget_ms", BigInteger, nullable=False),
    Column("v", Integer, nullable=False),
    *(Column(field.name, _KINDS[type(field.default)], nullable=False) for field in fields(Record)),
    Index("singleflight_leases_forget", "forget_ms"),
)

runs = Table(
    "singleflight_runs",
    metadata,
    Column("lease_key", _key, primary_key=True),
    # A delivery that is released twice, by child and by parent, ended once.
    Column("token", _key, primary_key=True),
    Column("run_id", _text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("task", _text),
    Column("worker", _text),
    Column("planned", String(32)),
    Column("started", String(32)),
    Column("ended", String(32), nullable=False),
    Column("outcome", String(16), nullable=False),
    Index("singleflight_runs_ended", "ended"),
)

waiting = Table(
    "singleflight_waiting",
    metadata,
    Column("lease_key", _key, primary_key=True),
    Column("run", String(64), primary_key=True),
    Column("place", BigInteger, nullable=False),
    Column("standing", String(8), nullable=False),
    Column("begun", Boolean, nullable=False),
    Column("moment_ms", BigInteger, nullable=False),
    Column("entry", _text, nullable=False),
    Column("message", LargeBinary().with_variant(mysql.MEDIUMBLOB, "mysql", "mariadb")),
    Index("singleflight_waiting_standing", "lease_key", "standing", "begun", "place"),
    Index("singleflight_waiting_moment", "lease_key", "moment_ms"),
)

moments = Table(
    "singleflight_moments",
    metadata,
    Column("home", _key, primary_key=True),
    Column("lease_key", _key, primary_key=True),
    Column("moment_ms", BigInteger, nullable=False),
    Index("singleflight_moments_next", "home", "moment_ms"),
)

schema = Table("singleflight_schema", metadata, Column("version", Integer, primary_key=True))


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as columns."""
    row = {field.name: getattr(record, field.name) for field in fields(Record)}
    # Flags as numbers, like in the other stores.
    remembered = [[run.run_id, run.attempt, int(run.ended)] for run in record.runs]
    return {**row, "runs": json.dumps(remembered, ensure_ascii=False), "v": RECORD_VERSION}


def record_of(row: RowMapping) -> Record:
    """Return the record that `row_of` made columns of."""
    values: dict[str, Any] = {field.name: row[field.name] for field in fields(Record)}
    remembered = json.loads(row["runs"])
    values["runs"] = tuple(Run(run, attempt, bool(ended)) for run, attempt, ended in remembered)
    return Record(**values)


def ended_run(release: Release, record: Record | None, now_ms: int) -> dict[str, Any]:
    """Return the row about a delivery that is being released; what is not known of it is None."""
    own = record if record is not None and record.token == release.token else None
    holder = Holder.decode(own.holder) if own else None
    return {
        "lease_key": release.key,
        "token": release.token,
        "run_id": release.run_id,
        "attempt": release.attempt,
        "task": holder and holder.task,
        "worker": holder and f"{holder.host}, pid {holder.pid}",
        "planned": planned(release.run_id),
        "started": instant(own.started_ms) if own and own.started_ms else None,
        "ended": instant(now_ms),
        "outcome": str(release.outcome),
    }


def planned(run_id: str) -> str | None:
    """Return the instant that a run was planned for: its id, or what follows the last ``@``, if it is one."""
    try:
        found = datetime.fromisoformat(run_id.rpartition("@")[2])
    except ValueError:
        return None
    # Without an offset nobody knows which instant it is: it is shown as it was given.
    return instant(found.timestamp() * 1000) if found.tzinfo else found.isoformat()


def instant(epoch_ms: float) -> str:
    """Return epoch milliseconds as people read them: ``2026-11-29T03:00:00.000Z``."""
    whole = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return whole.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class OvertakenError(Exception):
    """Raised when somebody else wrote between our read and our write."""


def alive(row: RowMapping | None, now_us: int) -> Record | None:
    """Return the record of a row, unless its life is over."""
    return record_of(row) if row and row["forget_ms"] > now_us // 1000 else None


def write(connection: Connection, key: str, new: Mapping[str, Any], revision: int | None) -> None:
    """Write a row if it is still at this revision; None: if there still is none."""
    values = {**new, "lease_key": key, "revision": secrets.randbits(62)}
    if revision is None:
        if not insert_once(connection, values, leases):
            raise OvertakenError
        return
    same = (leases.c.lease_key == bindparam("key"), leases.c.revision == bindparam("seen"))
    if (
        connection.execute(
            update(leases).where(*same).values(values), {"key": key, "seen": revision}
        ).rowcount
        != 1
    ):
        raise OvertakenError


def insert_once(connection: Connection, values: Mapping[str, Any], table: Table = runs) -> bool:
    """Insert a row unless there is one; True if there was none."""
    try:
        connection.execute(insert(table).values(values))
    except exc.IntegrityError:
        return False
    return True
