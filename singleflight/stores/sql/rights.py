"""The least rights in a database: of those who keep leases in it, and of those who only look."""

from __future__ import annotations

from singleflight.stores.optional import LOOKERS, WORKERS
from singleflight.stores.sql.tables import metadata, waiting


def grants() -> list[str]:
    """Return the statements that give them, with a comment above those of each user."""
    tables = metadata.sorted_tables
    # Who waits is for operators to see, not what is in the messages.
    shown = ", ".join(column.name for column in waiting.c if column is not waiting.c.message)
    looks = {table: f"SELECT ({shown})" if table is waiting else "SELECT" for table in tables}
    return [
        f"-- {WORKERS}",
        *(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table.name} TO singleflight;" for table in tables),
        f"-- {LOOKERS}",
        *(f"GRANT {rights} ON {table.name} TO operator;" for table, rights in looks.items()),
    ]
