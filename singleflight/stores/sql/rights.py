"""The least rights in a database: of those who keep leases in it, and of those who only look."""

from __future__ import annotations

from singleflight.stores.optional import LOOKERS, WORKERS
from singleflight.stores.sql.tables import metadata

RIGHTS = ((WORKERS, "SELECT, INSERT, UPDATE, DELETE", "singleflight"), (LOOKERS, "SELECT", "operator"))


def grants() -> list[str]:
    """Return the statements that give them, with a comment above those of each user."""
    lines = []
    for what_for, rights, user in RIGHTS:
        lines.append(f"-- {what_for}")
        lines += [f"GRANT {rights} ON {table.name} TO {user};" for table in metadata.sorted_tables]
    return lines
