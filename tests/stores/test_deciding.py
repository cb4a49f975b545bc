"""A store that decides in Python answers for each key, also when another one is in trouble."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Lease, StoreUnavailable
from singleflight.events import Kind, Notify
from singleflight.leases import keeper
from singleflight.leases.claiming import Leases
from singleflight.stores.base import Record, Renewal, Renewed
from singleflight.stores.deciding import DecidingStore
from singleflight.testing.contract_base import granted
from tests.support.core import Core

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


def test_a_lease_without_an_answer_ends_alone(store: Troubled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder whose renewals have no answer is told when its trust is over; its neighbour goes on."""
    core = Core()
    monkeypatch.setattr(keeper._Process, "keeper", core.keeper)
    leases = Leases(store, Notify([core.events.append]))
    first, second = (leases.claim(core.request(name, ttl=3.0)) for name in ("x", "y"))
    assert isinstance(first, Lease)
    assert isinstance(second, Lease)
    store.in_trouble = {first.key}
    core.pass_time(10)

    trouble = [(event.kind, event.task) for event in core.events if event.kind is not Kind.GRANTED]
    assert trouble == [(Kind.STORE_ERROR, "x"), (Kind.LOST, "x")]
    assert not first.held
    assert second.held
