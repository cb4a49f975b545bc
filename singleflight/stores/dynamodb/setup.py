"""How the table of the DynamoDB store comes to be: once, by somebody who may create tables."""

from __future__ import annotations

import json
import time
from typing import Any

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.lease import monotonic
from singleflight.stores.dynamodb.client import make_client
from singleflight.stores.dynamodb.errors import code_of, driver, translated
from singleflight.stores.dynamodb.store import DynamoStore

KEY = [{"AttributeName": "lease_key", "KeyType": "HASH"}]
TIDYING = {"AttributeName": "forget_at", "Enabled": True}


def create_table(url: str, *, wait: float = 60.0) -> None:
    """Make the table of a DynamoDB store, paid by request, with tidying on; safe to repeat.

    Args:
        url: ``dynamodb://table?region=...&endpoint=...``
        wait: seconds to wait until the table can be used.

    Raises:
        ConfigurationError: if the user may not, the URL is wrong, or a table of that name is none of ours.
        StoreUnavailable: if the table is not there in time.
    """
    store = DynamoStore.from_url(url)
    try:
        client = make_client(store.region, store.endpoint, 10)
        try:
            client.create_table(
                TableName=store.table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": "lease_key", "AttributeType": "S"}],
                KeySchema=KEY,
            )
        except driver.ClientError as error:
            if code_of(error) != "ResourceInUseException":
                raise
        _check(_wait(client, store, wait), store)
        _tidy(client, store.table)
    except (driver.ClientError, driver.BotoCoreError) as error:
        raise translated(error, store.address, "the table") from error


def least_policy(url: str, *, listing: bool = False) -> str:
    """Return the least IAM policy, as JSON, for those who use the store but do not make its table.

    Args:
        url: ``dynamodb://table?region=...&endpoint=...``
        listing: also for `Listing.scan`, which operators need and workers do not.
    """
    store = DynamoStore.from_url(url)
    arn = f"arn:aws:dynamodb:{store.region or '*'}:*:table/{store.table}"
    actions = ["dynamodb:GetItem", "dynamodb:PutItem", *(["dynamodb:Scan"] if listing else [])]
    statement = {"Effect": "Allow", "Action": actions, "Resource": arn}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)


def _wait(client: Any, store: DynamoStore, seconds: float) -> dict[str, Any]:
    deadline = monotonic() + seconds
    while True:
        table: dict[str, Any] = client.describe_table(TableName=store.table)["Table"]
        if table["TableStatus"] == "ACTIVE":
            return table
        if monotonic() > deadline:
            raise StoreUnavailable(f"store {store.address}: the table is still {table['TableStatus']}")
        time.sleep(0.5)


def _check(table: dict[str, Any], store: DynamoStore) -> None:
    if table["KeySchema"] != KEY:
        raise ConfigurationError(f"store {store.address}: the table is not ours; choose another name")
    if table.get("Replicas"):
        raise ConfigurationError(
            f"store {store.address}: this is a global table, whose regions do not wait for each other; "
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
