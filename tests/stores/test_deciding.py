"""A store that decides in Python answers for each key, also when another one is in trouble."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Lease, StoreUnavailable
from singleflight.events import Event, Kind, Notify
from singleflight.flight import Leases, Request, new_token
from singleflight.keeper import process_keeper
from singleflight.stores.base import Record, Renewal, Renewed
from singleflight.stores.deciding import DecidingStore
from singleflight.testing.contract_base import granted
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable


class Troubled(DecidingStore):
    """Records in a dictionary, on a clock that stands still; keys that are in trouble have no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, Record] = {}
        self.in_trouble: set[str] = set()
        self.asked = Counter[str]()

    def change(self, key: str, decide: Callable[[Record | None, int], tuple[Record | None, Any]]) -> Any:
        """See `DecidingStore.change`."""
        self.asked[key] += 1
        if key in self.in_trouble:
            raise StoreUnavailable(f"{key} is throttled")
        changed, answer = decide(self.records.get(key), 1_700_000_000_000_000)
        if changed is not None:
            self.records[key] = changed
        return answer

    def read(self, key: str) -> tuple[Record | None, int, int]:
        """See `DecidingStore.read`."""
        return self.records.get(key), 1_800_000_000_000, 1_700_000_000_000

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def store() -> Troubled:
    """A store without trouble yet."""
    return Troubled()


def renewals(store: Troubled, *keys: str) -> list[Renewal]:
    """Claim these keys and return their renewals."""
    return [Renewal(key, "a", 0, "token-a-0", granted(store, key, "a").fence, 60_000) for key in keys]


def test_a_key_in_trouble_does_not_hinder_the_others(store: Troubled) -> None:
    """Of renewals sent together only the one whose key has no answer gets an error."""
    wanted = renewals(store, "a", "b", "c")
    store.in_trouble = {"b"}

    first, second, third = store.renew(wanted)

    assert (first, third) == (Renewed.RENEWED, Renewed.RENEWED)
    assert isinstance(second, StoreUnavailable)


def test_a_store_in_trouble_is_not_asked_for_every_key(store: Troubled) -> None:
    """When two in a row have no answer, the store is away: that is raised, and the rest cost no time."""
    wanted = renewals(store, *"abcdefgh")
    store.in_trouble = set("abcdefgh")
    store.asked.clear()

    with pytest.raises(StoreUnavailable, match="a is throttled"):
        store.renew(wanted)
    assert store.asked.total() == 2


def test_a_lease_without_an_answer_ends_alone(store: Troubled) -> None:
    """A holder whose renewals have no answer is told when its trust is over; its neighbour goes on."""
    events: list[Event] = []
    leases = Leases(store, Notify([events.append]))
    first, second = (leases.claim(Request(key, key, "a", new_token(), ttl=1.5)) for key in ("x", "y"))
    assert isinstance(first, Lease)
    assert isinstance(second, Lease)
    store.in_trouble = {"x"}
    until(lambda: Kind.LOST in [event.kind for event in events], 30, "the loss")

    lost = {event.key for event in events if event.kind is Kind.LOST}
    told = [event for event in events if event.kind is Kind.STORE_ERROR]
    assert lost == {"x"}
    assert not first.held
    assert [event.key for event in told] == ["x"]
    store.in_trouble.clear()
    assert second.release()
    first.release()
    until(lambda: not [one for one in process_keeper()._entries() if one.store is store], 30, "all errands")
