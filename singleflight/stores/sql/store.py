"""Leases in PostgreSQL, MySQL or MariaDB, and SQLite: one row per key, changed by compare-and-set.

The tables are in `singleflight.stores.sql.tables`. Every operation:
1. reads the row and the database's clock in one statement;
2. lets `singleflight.stores.record_rules` decide;
3. writes the row if its ``revision`` is still the one that was read, or inserts it if there was none; if
   somebody else was faster, starts again at 1.

Where somebody waits, rows of the line are read between 1 and 2, and written with 3 in one transaction; see
`singleflight.stores.sql.line`. Else each statement commits by itself. No transaction and no lock stays open
while this process decides (it may be paused), no session matters, so a transaction pooler may stand between,
and a transaction that the caller has open has nothing to do with it. A deadlock, a busy file or a broken
connection starts again at 1 as well, until the time is up: if the write had arrived all the same, its token
is recognised.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

# First: it says what to install if SQLAlchemy is missing.
from singleflight.stores.sql.engine import CLOCKS, address, bounded, make_engine, parse  # isort: skip
from sqlalchemy import bindparam, delete, exc, func, literal_column, select

from singleflight.errors import ConfigurationError, SingleflightError, StoreUnavailable
from singleflight.lease import Outcome, monotonic
from singleflight.stores.base import RECORD_VERSION, REMEMBER, Record
from singleflight.stores.bounds import check_release
from singleflight.stores.deciding_line import DecidingLine
from singleflight.stores.line import STEP_MS
from singleflight.stores.line_rules import release as release_by_rule
from singleflight.stores.sql import line as in_line
from singleflight.stores.sql.errors import no_tables, other_tables, passing, translated
from singleflight.stores.sql.rights import grants
from singleflight.stores.sql.setup import make_tables, statements
from singleflight.stores.sql.tables import (
    SCHEMA_VERSION,
    OvertakenError,
    alive,
    ended_run,
    insert_once,
    instant,
    leases,
    row_of,
    runs,
    schema,
    waiting,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from sqlalchemy import ColumnElement
    from sqlalchemy.engine import Connection, Engine, RowMapping

    from singleflight.stores.base import Release, Renewal, Renewed
    from singleflight.stores.deciding_line import Answer
    from singleflight.stores.line import Entry
    from singleflight.stores.line_call import Step
    from singleflight.stores.lining import Released

    Result = TypeVar("Result")

HISTORY = 30 * 86400.0
"""Seconds for which the rows about ended runs are kept."""

BEGINS = {"sqlite": "BEGIN IMMEDIATE", "mysql": "START TRANSACTION", "mariadb": "START TRANSACTION"}
"""How a transaction begins where connections commit by themselves."""

TIDY_EVERY = 60.0
"""Seconds between two looks of one process for rows whose life is over."""

TIDY_AT_ONCE = 500
"""How many rows one look removes at most."""

PAGE = 500
"""How many keys are read at once when they are listed."""


class SqlStore(DecidingLine):
    """A `Store` in a database; safe to use from any thread and on both sides of a fork.

    Args:
        url: as SQLAlchemy takes it, with or without a driver: ``postgresql+psycopg://user:pw@host/db``.
        timeout: seconds that one request may take, including its retries.
        remember: seconds for which an ended run is recognised.
        history: seconds for which the rows about ended runs are kept, built in 30 days.
    """

    def __init__(
        self, url: str, *, timeout: float = 1.0, remember: float = REMEMBER, history: float = HISTORY
    ) -> None:
        super().__init__(remember=remember)
        self.timeout = timeout
        self.history = history
        self._url = parse(url)
        self._address = address(self._url)
        # By process: a child must neither use nor close its parent's connections, so they stay here.
        self._engines: dict[int, Engine] = {}
        self._checked = False
        self._looked_ms = 0
        self._tidied = monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Leave connections behind: a copy in another process makes its own."""
        return {**self.__dict__, "_engines": {}}

    @classmethod
    def from_url(
        cls, url: str, *, timeout: float = 1.0, remember: float = REMEMBER, history: float = HISTORY
    ) -> SqlStore:
        """Return the store that a URL names; nothing is connected yet."""
        return cls(url, timeout=timeout, remember=remember, history=history)

    def change(
        self, key: str, decide: Callable[[Record | None, int], tuple[Record | None, Answer]]
    ) -> Answer:
        """See `DecidingStore.change`."""

        def work(connection: Connection) -> Answer:
            row, now_us = self._find(connection, key)
            return self._decided(connection, key, row, now_us, decide)

        return self._ask(key, work)

    def change_line(
        self, key: str, decide: Callable[[Record | None, in_line.SqlLine, int], tuple[Record | None, Answer]]
    ) -> Answer:
        """See `DecidingLine.change_line`."""

        def work(connection: Connection) -> Answer:
            row, now_us = self._find(connection, key)
            line = in_line.SqlLine(connection, key)
            found = alive(row, now_us)
            changed, answer = decide(found, line, now_us)
            # Without a record a dead one is written: that says whether somebody came between.
            record = changed or found
            ends_ms = self.life_ends(record, now_us) if record else 0
            new = {**row_of(record or Record()), "forget_ms": ends_ms}
            with self._transaction(connection):
                write(connection, key, new, row["revision"] if row else None)
                line.write()
            return answer

        return self._ask(key, work)

    def read_line(self, key: str, most: int) -> tuple[int, Sequence[Entry], int]:
        """See `DecidingLine.read_line`."""

        def work(connection: Connection) -> tuple[int, Sequence[Entry], int]:
            row, now_us = self._find(connection, key)
            shown = in_line.SqlLine(connection, key).listed(most)
            return row["waiting"] if row else 0, shown, now_us // 1000

        return self._ask(key, work)

    def due_keys(self, homes: Sequence[str], most: int) -> tuple[list[str], int | None]:
        """See `DecidingLine.due_keys`."""

        def work(connection: Connection) -> tuple[list[str], int | None]:
            now_ms = connection.execute(select(self._clock())).scalar_one() // 1000
            if now_ms < self._looked_ms - STEP_MS:
                in_line.all_due(connection, homes)
            self._looked_ms = now_ms
            return in_line.due_keys(connection, homes, now_ms, most)

        return self._ask(", ".join(homes), work)

    def renew(self, renewals: Sequence[Renewal]) -> list[Renewed | SingleflightError]:
        """See `Store.renew`; one statement reads all rows, and each is written by its own."""

        def work(connection: Connection) -> list[Renewed | SingleflightError]:
            rows, now_us = self._find_all(connection, [renewal.key for renewal in renewals])
            return [
                self._decided(connection, one.key, rows.get(one.key), now_us, self._renewing(one))
                for one in renewals
            ]

        if len(renewals) > 1:
            # Otherwise each is asked about alone, so that one in trouble does not hinder the others.
            with suppress(SingleflightError):
                return self._ask(renewals[0].key, work)
        return super().renew(renewals)

    def read(self, key: str) -> tuple[Record | None, int, int]:
        """See `DecidingStore.read`."""
        row, now_us = self._ask(key, lambda connection: self._find(connection, key))
        return alive(row, now_us), row["forget_ms"] if row else 0, now_us // 1000

    def release_in_line(self, release: Release, homes: Sequence[str]) -> Released:
        """See `Lining.release_in_line`; what ended becomes a row of ``singleflight_runs``."""
        check_release(release)
        seen: list[dict[str, Any]] = []

        def work(step: Step) -> tuple[Record | None, Released]:
            seen[:] = [ended_run(release, step.found, step.now_ms)]
            return release_by_rule(step, release)

        released = self._step(release.key, homes, work)
        if release.outcome is not Outcome.REQUEUED:
            # If this fails, the release is tried again as a whole, and finds itself done already.
            self._ask(release.key, lambda connection: insert_once(connection, seen[0]))
        if monotonic() > self._tidied + TIDY_EVERY:
            self._tidied = monotonic()
            self._ask(release.key, self._tidy)
        return released

    def scan(self, prefix: str) -> Iterator[str]:
        """See `Listing.scan`."""
        begins = leases.c.lease_key.startswith(f"{prefix}:", autoescape=True)
        kept = leases.c.forget_ms > func.floor(self._clock() / 1000)
        last = ""
        while True:
            page = select(leases.c.lease_key).where(begins, kept, leases.c.lease_key > last)
            page = page.order_by(leases.c.lease_key).limit(PAGE)
            keys = self._ask(prefix, lambda connection: connection.execute(page).scalars().all())  # noqa: B023
            # For SQLite, upper and lower case are the same here.
            yield from (key for key in keys if key.startswith(f"{prefix}:"))
            if len(keys) < PAGE:
                return
            last = keys[-1]

    def set_up(self) -> bool:
        """See `SetUp.set_up`."""
        make_tables(self._url)
        return True

    def instructions(self, prefix: str) -> list[str]:
        """See `SetUp.instructions`."""
        del prefix  # rights are for whole tables
        made = [f"{statement};" for statement in statements(self._url)]
        return made if self._url.get_backend_name() == "sqlite" else made + grants()

    def close(self) -> None:
        """Close the connections of this process; the store may be used again afterwards."""
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.dispose()

    def _clock(self) -> ColumnElement[int]:
        """Return an expression for the database's epoch microseconds; another clock in tests."""
        return literal_column(CLOCKS[self._url.get_backend_name()])

    def _find(self, connection: Connection, key: str) -> tuple[RowMapping | None, int]:
        """Read a row, alive or not, and the clock, in one statement."""
        rows, now_us = self._find_all(connection, [key])
        return rows.get(key), now_us

    def _find_all(self, connection: Connection, keys: list[str]) -> tuple[dict[str, RowMapping], int]:
        """Read rows, alive or not, and the clock, in one statement."""
        clock = select(self._clock().label("now_us")).subquery("clock")
        joined = clock.outerjoin(leases, leases.c.lease_key.in_(bindparam("keys", expanding=True)))
        question = select(clock.c.now_us, *leases.c).select_from(joined)
        found = connection.execute(question, {"keys": keys}).mappings().all()
        rows = {row["lease_key"]: row for row in found if row["lease_key"] is not None}
        for key, row in rows.items():
            if row["v"] != RECORD_VERSION:
                raise ConfigurationError(
                    f"store {self._address}: {key} has record version {row['v']}, this singleflight reads "
                    f"{RECORD_VERSION}; use one version everywhere, or another prefix"
                )
        return rows, found[0]["now_us"]

    def _decided(
        self,
        connection: Connection,
        key: str,
        row: RowMapping | None,
        now_us: int,
        decide: Callable[[Record | None, int], tuple[Record | None, Answer]],
    ) -> Answer:
        """Let ``decide`` change a row that was just read, and write it."""
        found = alive(row, now_us)
        changed, answer = decide(found, now_us)
        if changed is not None and changed != found:
            new = {**row_of(changed), "forget_ms": self.life_ends(changed, now_us)}
            write(connection, key, new, row["revision"] if row else None)
        return answer

    def _tidy(self, connection: Connection) -> None:
        """Remove some rows whose life is over."""
        with suppress(exc.DBAPIError):  # somebody else is at it
            now_ms = connection.execute(select(self._clock())).scalar_one() // 1000
            over = select(leases.c.lease_key).where(leases.c.forget_ms <= now_ms).limit(TIDY_AT_ONCE)
            keys = connection.execute(over).scalars().all()
            # Asked again in the statement that removes: a row may have come back to life.
            connection.execute(
                delete(leases).where(leases.c.lease_key.in_(keys), leases.c.forget_ms <= now_ms)
            )
            connection.execute(
                delete(waiting).where(
                    waiting.c.lease_key.in_(keys), waiting.c.lease_key.not_in(select(leases.c.lease_key))
                )
            )
            old = runs.c.ended < instant(now_ms - self.history * 1000)
            tokens = connection.execute(select(runs.c.token).where(old).limit(TIDY_AT_ONCE)).scalars().all()
            connection.execute(delete(runs).where(runs.c.token.in_(tokens), old))
            if len(keys) == TIDY_AT_ONCE:
                self._tidied -= TIDY_EVERY

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        """Write all that the block writes, or nothing."""
        connection.exec_driver_sql(BEGINS.get(self._url.get_backend_name(), "BEGIN"))
        try:
            yield
            connection.exec_driver_sql("COMMIT")
        except exc.IntegrityError as error:
            connection.exec_driver_sql("ROLLBACK")
            raise OvertakenError from error
        except OvertakenError:
            connection.exec_driver_sql("ROLLBACK")
            raise

    def _ask(self, key: str, work: Callable[[Connection], Result]) -> Result:
        """Do a piece of work; again, if somebody came between or the connection broke, until time is up."""
        deadline = monotonic() + self.timeout
        pause = 0.002
        while True:
            try:
                with self._connected(deadline) as connection:
                    return work(connection)
            except OvertakenError as error:
                if monotonic() >= deadline:
                    raise StoreUnavailable(
                        f"store {self._address}: others changed {key} each time that we tried"
                    ) from error
            # pg8000 lets what its socket says through, and drivers what they cannot write.
            except (exc.SQLAlchemyError, TypeError, OSError, ValueError) as error:
                if not passing(error) or monotonic() >= deadline:
                    raise translated(error, self._address, key) from error
            time.sleep(random.uniform(0, pause))  # noqa: S311 - spreads writers, guards nothing
            pause = min(2 * pause, 0.1)

    @contextmanager
    def _connected(self, deadline: float) -> Iterator[Connection]:
        """Lend a connection until the deadline; after an error of any kind it is not used again.

        That holds for an exception from outside too, such as a time limit that strikes between request and
        reply: the next request would read the reply of this one.
        """
        pid = os.getpid()
        engine = self._engines.get(pid)
        if engine is None:
            # If two threads come here at once, one of the engines is dropped before it has connected.
            engine = self._engines.setdefault(pid, make_engine(self._url, self.timeout))
        with engine.connect() as connection:
            try:
                with bounded(connection, deadline - monotonic()):
                    if not self._checked:
                        self._check(connection)
                    yield connection
            except OvertakenError:
                raise
            except BaseException:
                connection.invalidate()
                raise

    def _check(self, connection: Connection) -> None:
        """Refuse tables of another version."""
        version = connection.execute(select(func.max(schema.c.version))).scalar_one()
        if version is None:
            raise no_tables(self._address)
        if version != SCHEMA_VERSION:
            raise other_tables(self._address, version, SCHEMA_VERSION)
        self._checked = True
