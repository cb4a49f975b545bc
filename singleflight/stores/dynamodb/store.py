"""Leases in DynamoDB: one item per key, changed by compare-and-set.

An item has the fields of `Record` (``runs`` as JSON), and ``lease_key`` (the table's only key), ``v``,
``revision`` (drawn anew for every write), ``region`` (where it was written), ``forget_ms`` (the end of its
life) and ``forget_at`` (the same in whole seconds and later, for DynamoDB's own tidying). Every operation:
1. reads the item, consistently; the response tells the time too;
2. lets `singleflight.stores.record_rules` decide;
3. puts the item if its ``revision`` is still the one that was read; the refusal brings the newer item, with
   which it goes on at 2.

An answer that was lost, throttling and an outage start again at 1, until the time is up: if the write had
arrived all the same, its token is recognised. Whether DynamoDB has tidied an item up decides nothing.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from typing import TYPE_CHECKING, Any

from singleflight.errors import ConfigurationError, SingleflightError, StoreUnavailable
from singleflight.lease import monotonic
from singleflight.log import struck
from singleflight.stores import record_rules as rules
from singleflight.stores.base import RECORD_VERSION, REMEMBER
from singleflight.stores.bounds import check_claim, check_release
from singleflight.stores.deciding import DecidingStore
from singleflight.stores.dynamodb.clock import ServerClock
from singleflight.stores.dynamodb.errors import THROTTLING, code_of, driver, passing, translated
from singleflight.stores.dynamodb.items import alive, item_of
from singleflight.stores.dynamodb.pace import Pace
from singleflight.stores.dynamodb.rights import policies
from singleflight.stores.dynamodb.setup import make_table
from singleflight.stores.dynamodb.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from singleflight.lease import Busy, Granted
    from singleflight.stores.base import Claim, Record, Release, Renewal, Renewed
    from singleflight.stores.deciding import Answer
    from singleflight.stores.dynamodb.items import Item

LEFT_LYING = 3600
"""Seconds after the end of its life from which on DynamoDB may remove an item."""


class DynamoStore(DecidingStore):
    """A `Store` in a DynamoDB table; safe to use from any thread and on both sides of a fork.

    What it writes as an end is up to `singleflight.stores.dynamodb.clock.BOUND` seconds later than asked.

    Args:
        table: where leases are kept.
        timeout: seconds that one operation may take, including its retries.
        remember: seconds for which an ended run is recognised.
    """

    def __init__(self, table: Table, *, timeout: float = 1.0, remember: float = REMEMBER) -> None:
        super().__init__(remember=remember)
        self._table = table
        self.timeout = timeout
        self._clock = ServerClock()
        self._pace = Pace()
        self._clients: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave connections behind: a copy in another process makes its own."""
        return {**self.__dict__, "_clients": {}}

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 1.0, remember: float = REMEMBER) -> DynamoStore:
        """Return the store of ``dynamodb://table?region=...&endpoint=...``; nothing is connected yet."""
        return cls(Table.from_url(url), timeout=timeout, remember=remember)

    @property
    def address(self) -> str:
        """Where the table is, for messages."""
        return self._table.address

    def claim(self, claim: Claim) -> Granted | Busy:
        """See `Store.claim`."""
        check_claim(claim)
        window_ms = claim.window_ms and claim.window_ms + self._clock.bound_ms
        return super().claim(claim._replace(ttl_ms=claim.ttl_ms + self._clock.bound_ms, window_ms=window_ms))

    def renew(self, renewals: Sequence[Renewal]) -> list[Renewed | SingleflightError]:
        """See `Store.renew`; DynamoDB takes one round trip for each read and each write."""
        return super().renew([each._replace(ttl_ms=each.ttl_ms + self._clock.bound_ms) for each in renewals])

    def release(self, release: Release) -> bool:
        """See `Store.release`."""
        check_release(release)
        grace_ms = release.grace_ms and release.grace_ms + self._clock.bound_ms
        longer = release._replace(grace_ms=grace_ms)
        return self.change(
            release.key, lambda found, now_us: rules.release(found, longer, now_us // 1000), urgent=True
        )

    def change(
        self,
        key: str,
        decide: Callable[[Record | None, int], tuple[Record | None, Answer]],
        *,
        urgent: bool = False,
    ) -> Answer:
        """See `DecidingStore.change`; what is ``urgent`` does not wait while the table throttles."""

        def work(item: Item | None) -> Answer:
            now_us = self._clock.now_us()
            found = alive(item, now_us)
            changed, answer = decide(found, now_us)
            if changed is not None and changed != found:
                ends_ms = self.life_ends(changed, now_us)
                self._put(key, changed, ends_ms, item["revision"]["S"] if item else None)
            return answer

        return self._with_item(key, work, urgent=urgent)

    def read(self, key: str) -> tuple[Record | None, int, int]:
        """See `DecidingStore.read`."""

        def work(item: Item | None) -> tuple[Record | None, int, int]:
            now_us = self._clock.now_us()
            return alive(item, now_us), int(item["forget_ms"]["N"]) if item else 0, now_us // 1000

        return self._with_item(key, work)

    def scan(self, prefix: str) -> Iterator[str]:
        """See `Listing.scan`; reads the whole table, and needs the right to dynamodb:Scan."""
        page: dict[str, Any] = {
            "ProjectionExpression": "lease_key, forget_ms",
            "FilterExpression": "begins_with(lease_key, :prefix)",
            "ExpressionAttributeValues": {":prefix": {"S": f"{prefix}:"}},
        }
        while True:
            try:
                response = self._request("scan", **page)
            except (driver.ClientError, driver.BotoCoreError) as error:
                raise translated(error, self.address, prefix) from error
            now_ms = self._clock.now_us() // 1000
            items = response["Items"]
            yield from (item["lease_key"]["S"] for item in items if int(item["forget_ms"]["N"]) > now_ms)
            if "LastEvaluatedKey" not in response:
                return
            page["ExclusiveStartKey"] = response["LastEvaluatedKey"]

    def set_up(self) -> bool:
        """See `SetUp.set_up`."""
        make_table(self._table)
        return True

    def instructions(self, prefix: str) -> list[str]:
        """See `SetUp.instructions`."""
        del prefix  # rights are for the whole table
        return policies(self._table)

    def close(self) -> None:
        """Close the connections of this process; the store may be used again afterwards."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _renew(self, renewal: Renewal) -> Renewed:
        return self.change(renewal.key, self._renewing(renewal), urgent=True)

    def _with_item(self, key: str, work: Callable[[Item | None], Answer], *, urgent: bool = False) -> Answer:
        """Read an item and work on it, again with a newer one if somebody came between.

        While the table throttles, whoever may wait leaves its capacity to renewals and releases.
        """
        self._client()  # a process's first one takes long to make, at no cost to the tries
        deadline = monotonic() + self.timeout
        most = 0.01
        newer: Item | None = None
        trouble: SingleflightError
        if not urgent:
            self._hold_back(key)
        while True:
            item = None
            try:
                item, newer = newer or self._get(key), None
                self._check(key, item)
                if self._clock.ready:
                    return work(item)
                trouble = StoreUnavailable(f"store {self.address} answers too slowly to tell the time")
            except _OvertakenError as overtaken:
                newer = overtaken.item
                trouble = StoreUnavailable(f"store {self.address}: others changed {key} each time we tried")
            except (driver.ClientError, driver.BotoCoreError) as error:
                if not passing(error):
                    raise translated(error, self.address, key) from error
                trouble = translated(error, self.address, key)
                trouble.__cause__ = error
                if code_of(error) in THROTTLING:
                    newer = item  # if it was the write that was refused, it alone is repeated
            pause = random.uniform(0, most)  # noqa: S311 - spreads writers, guards nothing
            if not urgent:
                pause = max(pause, self._pace.left)
            if monotonic() + pause >= deadline:
                raise trouble
            time.sleep(pause)
            most = min(2 * most, self.timeout / (8 if urgent else 2))

    def _hold_back(self, key: str) -> None:
        """Wait as long as the table is not to be asked; if that takes too long, say so without asking."""
        left = self._pace.left
        if left >= self.timeout:
            raise StoreUnavailable(f"store {self.address} throttles, and is not asked about {key} now")
        time.sleep(left)

    def _get(self, key: str) -> Item | None:
        item: Item | None = self._request("get_item", Key={"lease_key": {"S": key}}, ConsistentRead=True).get(
            "Item"
        )
        return item

    def _put(self, key: str, record: Record, ends_ms: int, revision: str | None) -> None:
        item = item_of(record) | {
            "lease_key": {"S": key},
            "revision": {"S": secrets.token_hex(8)},
            "region": {"S": str(self._client().meta.region_name)},
            "forget_ms": {"N": str(ends_ms)},
            "forget_at": {"N": str(ends_ms // 1000 + 1 + LEFT_LYING)},
        }
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(lease_key)"}
        if revision is not None:
            condition = {
                "ConditionExpression": "revision = :seen",
                "ExpressionAttributeValues": {":seen": {"S": revision}},
            }
        try:
            self._request("put_item", Item=item, ReturnValuesOnConditionCheckFailure="ALL_OLD", **condition)
        except driver.ClientError as error:
            if code_of(error) != "ConditionalCheckFailedException":
                raise
            # Not every server gives the newer item; without it the loop reads it.
            raise _OvertakenError(error.response.get("Item")) from error

    def _request(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send one request, and learn the time from its response, whatever that says."""
        client = self._client()
        sent = self._clock.steady()
        try:
            response: dict[str, Any] = getattr(client, operation)(TableName=self._table.name, **parameters)
        except driver.ClientError as error:
            headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
            if "date" in headers:
                self._clock.learn(headers, sent)
            if code_of(error) in THROTTLING:
                self._pace.refused()
            raise
        except driver.HTTPClientError as error:
            # botocore wraps whatever it meets, a time limit that strikes in the middle among it.
            if error.__context__ is not None and struck(error.__context__):
                raise error.__context__ from None
            raise
        self._pace.answered()
        self._clock.learn(response["ResponseMetadata"]["HTTPHeaders"], sent)
        return response

    def _client(self) -> Any:
        """Return this process's client; a forked child makes its own and leaves the parent's alone."""
        pid = os.getpid()
        if pid not in self._clients:
            # If two threads come here at once, one of the clients is dropped unused.
            self._clients.setdefault(pid, self._table.client(self.timeout / 2))
        return self._clients[pid]

    def _check(self, key: str, item: Item | None) -> None:
        """Refuse an item that another version wrote, or another region of a global table."""
        if item is None:
            return
        here = str(self._client().meta.region_name)
        version = item.get("v", {}).get("N")
        if version != str(RECORD_VERSION):
            raise ConfigurationError(
                f"store {self.address}: {key} has record version {version}, this singleflight reads "
                f"{RECORD_VERSION}; use one version everywhere, or another prefix"
            )
        if item["region"]["S"] != here:
            raise ConfigurationError(
                f"store {self.address}: {key} was written in {item['region']['S']}, and here is {here}. "
                "Regions of a global table do not wait for each other: use one everywhere, with ?region="
            )


class _OvertakenError(Exception):
    """Raised when somebody else wrote between our read and our write."""

    def __init__(self, item: Item | None) -> None:
        super().__init__()
        self.item = item
