"""A `Record` as an item of DynamoDB, and back; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from singleflight.stores.base import RECORD_VERSION, Record, Run

Item: TypeAlias = Mapping[str, Any]


def alive(item: Item | None, now_us: int) -> Record | None:
    """Return the record of an item, if it is one whose life has not ended."""
    return record_of(item) if item and int(item["forget_ms"]["N"]) > now_us // 1000 else None


def item_of(record: Record) -> dict[str, Any]:
    """Return the attributes of a record; the store adds its own."""
    remembered = json.dumps(
        [[run.run_id, run.attempt, int(run.ended)] for run in record.runs], ensure_ascii=False
    )
    plain = {field.name: getattr(record, field.name) for field in fields(Record)}
    return {
        name: _attribute(value) for name, value in (plain | {"runs": remembered, "v": RECORD_VERSION}).items()
    }


def _attribute(value: object) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"BOOL": value}
    return {"N": str(value)} if isinstance(value, int) else {"S": str(value)}


def record_of(item: Item) -> Record:
    """Return the record of an item."""
    values: dict[str, Any] = {}
    for field in fields(Record):
        if field.name not in item:  # written before there was such a field
            continue
        ((kind, value),) = item[field.name].items()
        values[field.name] = int(value) if kind == "N" else value
    remembered = json.loads(values["runs"])
    values["runs"] = tuple(Run(run, attempt, bool(ended)) for run, attempt, ended in remembered)
    return Record(**values)
