"""What runs under a lease here: it says often that it is alive, and writes what a fence guards."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from singleflight.identity import message_id_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from singleflight.lease import Lease
    from tests.torture.journal import Journal

SIGN = 0.03
"""Seconds between two signs of life."""

WRITE = """
INSERT INTO guarded VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET fence = excluded.fence
WHERE excluded.fence >= guarded.fence
"""


def make_table(folder: Path) -> None:
    """Make what must not be written by a holder that another has followed."""
    with closing(sqlite3.connect(folder / "guarded.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE guarded (key TEXT PRIMARY KEY, fence INTEGER)")
        database.commit()


def work(
    journal: Journal, lease: Lease, seconds: float, *, heed: bool = True, ends: str = "returned"
) -> None:
    """Be a body: write its start, its signs of life, its guarded writes and its end.

    ``heed`` ends it when its lease is lost; a body that takes no heed goes on, and only says so.
    """
    body = journal.new_id()
    facts = {"who": journal.name, "key": lease.key, "run": lease.run_id, "fence": lease.fence}
    facts["message"] = message_id_of(lease.run_id)
    journal.write("body", id=body, attempt=lease.attempt, **facts)
    end = time.monotonic() + seconds
    how = ends
    try:
        _write(journal, body, lease)
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SIGN))
            if not sign(journal, body, lease) and heed:
                how = "lost"
                break
        _write(journal, body, lease)
    except BaseException as error:
        how = type(error).__name__
        raise
    finally:
        sign(journal, body, lease, how=how)


def sign(journal: Journal, body: str, lease: Lease, **facts: object) -> bool:
    """Say that the body is alive, and whether it holds its lease; the moment is taken first."""
    at = time.monotonic()
    held = lease.held
    journal.write("sign", at=at, id=body, held=held, **facts)
    return held


def _write(journal: Journal, body: str, lease: Lease) -> None:
    before = lease.held
    accepted: Callable[[], bool] | bool = True
    # A client that is stopped in the middle of a write keeps all others out for a while.
    with (
        suppress(sqlite3.OperationalError),
        closing(
            sqlite3.connect(journal.folder / "guarded.db", timeout=0.3, isolation_level=None)
        ) as database,
    ):
        database.execute("PRAGMA synchronous=OFF")
        accepted = database.execute(WRITE, (lease.key, lease.fence)).rowcount == 1
    sign(journal, body, lease, refused=before and not accepted)
