"""The least IAM policies for a table: of workers, and of operators, who also list its keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from singleflight.stores.optional import OPERATORS, WORKERS

if TYPE_CHECKING:
    from singleflight.stores.dynamodb.table import Table

ACTIONS = ("dynamodb:GetItem", "dynamodb:PutItem")


def policies(table: Table) -> list[str]:
    """Return both as JSON, with a comment above each."""
    return [
        f"# {WORKERS}",
        _policy(table, ACTIONS),
        f"# {OPERATORS}",
        _policy(table, (*ACTIONS, "dynamodb:Scan")),
    ]


def _policy(table: Table, actions: tuple[str, ...]) -> str:
    arn = f"arn:aws:dynamodb:{table.region or '*'}:*:table/{table.name}"
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": arn}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)
