"""How the table of the DynamoDB store comes to be: once, by somebody who may create tables."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.lease import monotonic
from singleflight.stores.dynamodb.errors import code_of, driver, translated

if TYPE_CHECKING:
    from singleflight.stores.dynamodb.table import Table

KEY = [{"AttributeName": "lease_key", "KeyType": "HASH"}]
TIDYING = {"AttributeName": "forget_at", "Enabled": True}


def make_table(table: Table, *, wait: float = 60.0) -> None:
    """Make the table of a DynamoDB store, paid by request, with tidying on; safe to repeat.

    Args:
        table: which one.
        wait: seconds to wait until it can be used.

    Raises:
        ConfigurationError: if the user may not, or a table of that name is none of ours.
        StoreUnavailable: if the table is not there in time.
    """
    try:
        client = table.client(10)
        try:
            client.create_table(
                TableName=table.name,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": "lease_key", "AttributeType": "S"}],
                KeySchema=KEY,
            )
        except driver.ClientError as error:
            if code_of(error) != "ResourceInUseException":
                raise
        _check(_wait(client, table, wait), table)
        _tidy(client, table.name)
    except (driver.ClientError, driver.BotoCoreError) as error:
        raise translated(error, table.address, "the table") from error


def _wait(client: Any, table: Table, seconds: float) -> dict[str, Any]:
    deadline = monotonic() + seconds
    while True:
        found: dict[str, Any] = client.describe_table(TableName=table.name)["Table"]
        if found["TableStatus"] == "ACTIVE":
            return found
        if monotonic() > deadline:
            raise StoreUnavailable(f"store {table.address}: the table is still {found['TableStatus']}")
        time.sleep(0.5)


def _check(found: dict[str, Any], table: Table) -> None:
    if found["KeySchema"] != KEY:
        raise ConfigurationError(f"store {table.address}: the table is not ours; choose another name")
    if found.get("Replicas"):
        raise ConfigurationError(
            f"store {table.address}: this is a global table, whose regions do not wait for each other; "
            "make a table of one region for leases"
        )


def _tidy(client: Any, table: str) -> None:
    """Have DynamoDB remove items whose life is long over; servers that cannot, need not."""
    try:
        client.update_time_to_live(TableName=table, TimeToLiveSpecification=TIDYING)
    except driver.ClientError as error:
        # It says ValidationException when it is on already.
        if code_of(error) not in ("ValidationException", "UnknownOperationException"):
            raise
