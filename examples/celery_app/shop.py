"""Stands for the database of your application: one SQLite file, ``shop.db``."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

TABLES = """
CREATE TABLE IF NOT EXISTS work
    (task TEXT, subject TEXT, fence INTEGER, pid INTEGER, started REAL, ended REAL);
CREATE TABLE IF NOT EXISTS report (id INTEGER PRIMARY KEY, text TEXT, fence INTEGER);
INSERT OR IGNORE INTO report VALUES (1, '', 0);
"""


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """Open the database for one transaction."""
    with closing(sqlite3.connect("shop.db", timeout=30)) as connection, connection:
        yield connection


def create() -> None:
    """Make the tables, if they are not there."""
    with closing(sqlite3.connect("shop.db", timeout=30)) as connection:
        connection.executescript(TABLES)


@contextmanager
def work(task: str, subject: str = "", fence: int = 0) -> Iterator[None]:
    """Note when and where a task began, and when it came to its end."""
    with database() as rows:
        begun = (task, subject, fence, os.getpid(), time.time())
        row = rows.execute("INSERT INTO work VALUES (?, ?, ?, ?, ?, NULL)", begun)
    yield
    with database() as rows:
        rows.execute("UPDATE work SET ended = ? WHERE rowid = ?", (time.time(), row.lastrowid))


def save_report(text: str, fence: int) -> bool:
    """Save the report, unless a later holder of the lease has saved one: fences only grow."""
    with database() as rows:
        query = "UPDATE report SET text = ?, fence = ? WHERE fence < ?"
        return rows.execute(query, (text, fence, fence)).rowcount == 1


if __name__ == "__main__":
    with database() as rows:
        for row in rows.execute("SELECT * FROM work ORDER BY started"):
            print(*row)
