"""What operators read about a key, from records that a clock turned by hand has made."""

from __future__ import annotations

import pytest

from singleflight.celery.ticks import tick_key
from singleflight.cli.operators.access import Access
from singleflight.cli.operators.entry import Entry, brief, in_order
from singleflight.keys import lease_key
from singleflight.lease import Holder, Outcome
from singleflight.stores.base import Claim, Release
from singleflight.stores.memory import MemoryStore
from singleflight.stores.view import View
from singleflight.testing import FakeClock

KEY = "singleflight:shop.nightly:{00112233445566778899aabbccddeeff}"
HOLDER = Holder("shop.nightly", "worker-1", 4711).encode()


@pytest.fixture
def clock() -> FakeClock:
    """A clock that only moves when a test says so."""
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    """An empty store."""
    return MemoryStore(clock=clock)


def entry(store: MemoryStore, key: str = KEY) -> Entry:
    """Look at a key that must be there."""
    view = View(store.peek(key))
    assert view.known
    return Entry(key, view)


def claim(store: MemoryStore, run: str, key: str = KEY, **more: int) -> None:
    """Claim for a run."""
    store.claim(Claim(key, run, 0, f"token-{run}", ttl_ms=30_000, holder=HOLDER, **more))


def test_a_running_key_says_who_and_for_how_long(store: MemoryStore, clock: FakeClock) -> None:
    """Holder, time held, time left, the one who waits and the refused fit into 80 columns."""
    claim(store, "one")
    claim(store, "two", wait_ms=20_000)
    claim(store, "three")
    clock.advance(12)
    found = entry(store)

    assert found.lines() == [
        "running  shop.nightly:00112233",
        "         worker-1 pid 4711 for 12 s, 18 s left; one waits",
        "         1 refused, last 12 s ago (running)",
    ]
    assert found.facts()["waiting"] == "two"
    assert found.facts()["time_left"] == 18.0


def test_a_key_that_only_somebody_waits_for_says_for_how_long(store: MemoryStore) -> None:
    """A published run whose message is gone blocks fresh calls: it is listed, and what an eviction frees."""
    store.queue(KEY, "purged", ttl_ms=7_200_000, running_too=True)
    found = entry(store)

    assert not found.quiet
    assert found.lines() == [
        "waiting  shop.nightly:00112233",
        "         free, started never; one waits, for 2 h at most",
    ]
    assert "waiting      purged, for 2 h at most" in found.paragraph()
    assert found.facts()["waiting_left"] == 7200.0
    assert found.blockers() == ["run purged waited"]


def test_a_dead_holder_is_told_apart_from_a_live_one(store: MemoryStore, clock: FakeClock) -> None:
    """A lease that was never given back and has run out is lapsed: the next claim takes over."""
    claim(store, "one")
    clock.advance(40)

    assert entry(store).state == "lapsed"
    assert "not heard of since" in entry(store).lines()[1]


def test_a_window_outlives_its_run(store: MemoryStore, clock: FakeClock) -> None:
    """A free key that may not start yet says when it may."""
    claim(store, "one", window_ms=600_000)
    store.release(Release(KEY, "one", 0, "token-one", Outcome.FAILED))
    clock.advance(60)

    assert entry(store).state == "window"
    assert entry(store).lines()[1] == "         failed, started 60 s ago; next start in 9 min"


def test_show_lists_the_last_runs(store: MemoryStore) -> None:
    """The newest is first; an attempt that ended with a retry is not an end."""
    for run, outcome in (("one", Outcome.FINISHED), ("two", Outcome.RETRYING)):
        claim(store, run)
        store.release(Release(KEY, run, 0, f"token-{run}", outcome))
    text = "\n".join(entry(store).paragraph())

    assert "last runs    two  attempt 0\n             one  ended" in text


def test_beats_ticks_are_told_apart_from_tasks_of_the_same_name(store: MemoryStore) -> None:
    """An entry of beat's schedule may be called as its task is; what is printed is not the same."""
    keys = [lease_key("p", "report"), tick_key("p", "report")]
    for key in keys:
        claim(store, "one", key)
    access = Access(store, "p")
    names = [entry(store, key).name for key in keys]

    assert names[1] == f"beat:{names[0]}"
    assert [access.key([name]) for name in names] == keys


def test_what_beats_keep_for_themselves_is_not_listed(store: MemoryStore) -> None:
    """The record by which they read the store's clock says nothing to operators."""
    for key in (lease_key("p:beat:clock", "clock"), tick_key("p", "tick")):
        claim(store, "one", key)

    assert [one.key for one in Access(store, "p").entries()] == [tick_key("p", "tick")]


def test_a_store_that_does_not_count_says_so(store: MemoryStore) -> None:
    """No number stands where nobody has counted."""
    claim(store, "one")
    found = Entry(KEY, entry(store).view, counted=False)

    assert "refused      not counted by this kind of store" in found.paragraph()
    assert found.facts()["refused"] is None


def test_the_urgent_comes_first(store: MemoryStore, clock: FakeClock) -> None:
    """Running, then lapsed, then what only waits, then windows, then what is free."""
    names = ["free", "window", "waiting", "lapsed", "running"]
    keys = [KEY.replace("nightly", name) for name in names]
    claim(store, "one", keys[0])
    store.release(Release(keys[0], "one", 0, "token-one", Outcome.FINISHED))
    claim(store, "one", keys[1], window_ms=600_000)
    store.release(Release(keys[1], "one", 0, "token-one", Outcome.FINISHED))
    claim(store, "one", keys[3])
    clock.advance(40)
    claim(store, "one", keys[4])
    store.queue(keys[2], "one", ttl_ms=60_000, running_too=False)
    found = in_order([entry(store, key) for key in keys])

    assert [one.state for one in found] == list(reversed(names))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (119, "119 s"), (121, "2 min"), (7300, "2 h"), (900000, "10 d"), (None, "?")],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    """One number and one unit."""
    assert brief(seconds) == text
