"""The contract's rules about the waiting slot: who gets it, who keeps it, whom it holds back."""
# ruff: noqa: S101, S106 - tests assert, and a lease's token is no password

from __future__ import annotations

from typing import TYPE_CHECKING

from singleflight.lease import Outcome, Reason
from singleflight.stores.base import Waits
from singleflight.testing.contract_base import LONG, Rules, granted, look, ran, refused, release

if TYPE_CHECKING:
    from singleflight.stores.base import Store
    from singleflight.testing.clock import FakeClock, RealClock


class SlotRules(Rules):
    """What `Store.claim` does with the slot, `Store.queue` and `Store.unqueue`."""

    def test_the_first_waiter_gets_the_slot(self, store: Store, key: str) -> None:
        """Of the runs that meet a running one and want to wait, the first gets the slot."""
        granted(store, key, "a")

        assert refused(store, key, "b", wait_ms=LONG).waiting == "b"
        assert refused(store, key, "c", wait_ms=LONG).waiting == "b"
        assert refused(store, key, "d").waiting == "b"

    def test_an_eviction_frees_the_slot(self, store: Store, key: str) -> None:
        """A run whose message was purged never comes: published, purged, evicted, another one may wait."""
        store.queue(key, "purged", ttl_ms=LONG, running_too=True)
        refused_before = store.queue(key, "next", ttl_ms=LONG, running_too=True)
        evicted = store.evict(key)

        assert refused_before is not None
        assert (refused_before.reason, evicted) == (Reason.QUEUED, True)
        assert store.queue(key, "next", ttl_ms=LONG, running_too=True) is None

    def test_an_eviction_frees_a_reserved_slot(self, store: Store, key: str) -> None:
        """A purged run that had reserved the key keeps no fresh one out; if it comes after all, it waits."""
        granted(store, key, "a")
        refused(store, key, "purged", wait_ms=LONG, waits=Waits.FIRST)
        release(store, key, "a")
        reserved = refused(store, key, "fresh")
        store.evict(key)
        granted(store, key, "fresh")

        assert reserved.reason is Reason.RESERVED
        assert refused(store, key, "purged", wait_ms=LONG).waiting == "purged"

    def test_a_run_that_meets_a_window_may_wait_too(self, store: Store, key: str) -> None:
        """A run that meets only the window takes a free slot as well."""
        ran(store, key, "a", window_ms=LONG)

        assert refused(store, key, "b", wait_ms=LONG).waiting == "b"

    def test_a_late_copy_takes_no_slot(self, store: Store, key: str) -> None:
        """A copy of an ended run gets no slot, though it asks for one."""
        ran(store, key, "a")

        assert refused(store, key, "a", token="late copy", wait_ms=LONG).waiting == ""

    def test_a_waiter_that_no_longer_waits_frees_the_slot(self, store: Store, key: str) -> None:
        """A run that holds the slot and claims without waiting gives it up."""
        granted(store, key, "a")
        refused(store, key, "b", wait_ms=LONG)

        assert refused(store, key, "b").waiting == ""

    def test_a_waiter_that_goes_on_waiting_keeps_its_slot(self, store: Store, key: str) -> None:
        """A run that holds the slot and claims again refreshes it."""
        granted(store, key, "a")
        refused(store, key, "b", wait_ms=LONG // 2)
        before = look(store, key).record.slot_expires_ms
        refused(store, key, "b", wait_ms=LONG)

        assert look(store, key).record.slot_expires_ms > before

    def test_a_copy_of_the_running_run_leaves_its_slot_alone(self, store: Store, key: str) -> None:
        """A second delivery of the running run does not clear the slot that its retry may need."""
        granted(store, key, "a")
        store.queue(key, "b", ttl_ms=LONG, running_too=False)
        release(store, key, "a", Outcome.REQUEUED)
        granted(store, key, "b")
        release(store, key, "b", Outcome.RETRYING, again_ms=LONG, grace_ms=LONG)

        assert refused(store, key, "b", 1, token="copy").reason is Reason.SAME_RUN
        assert look(store, key).record.slot == "b"

    def test_a_slot_lapses(self, store: Store, clock: FakeClock | RealClock, key: str) -> None:
        """A slot whose run never comes back is free after its time."""
        granted(store, key, "a")
        refused(store, key, "b", wait_ms=self.short)
        clock.advance(self.lapse)

        assert refused(store, key, "c", wait_ms=LONG).waiting == "c"

    def test_a_grant_clears_the_runs_own_slot(self, store: Store, key: str) -> None:
        """A run that is granted leaves the slot to the next one; another run's grant does not."""
        store.queue(key, "b", ttl_ms=LONG, running_too=True)
        ran(store, key, "a")
        assert look(store, key).record.slot == "b"

        granted(store, key, "b")

        assert refused(store, key, "c", wait_ms=LONG).waiting == "c"

    def test_a_reserved_slot_goes_first(self, store: Store, key: str) -> None:
        """While a reserved slot lives, a fresh run of another is refused; its own run is granted."""
        granted(store, key, "a")
        refused(store, key, "b", wait_ms=LONG, waits=Waits.FIRST)
        release(store, key, "a")

        busy = refused(store, key, "c")

        assert (busy.reason, busy.waiting) == (Reason.RESERVED, "b")
        assert 0 < busy.retry_after <= LONG / 1000
        granted(store, key, "b")

    def test_a_reserved_slot_does_not_hold_back_a_started_run(self, store: Store, key: str) -> None:
        """A run that has started before goes on past a reservation: it is no duplicate."""
        granted(store, key, "a")
        refused(store, key, "b", wait_ms=LONG, waits=Waits.FIRST)
        release(store, key, "a", Outcome.RETRYING)

        granted(store, key, "a", 1)

    def test_a_copy_of_an_ended_attempt_leaves_its_retrys_place_alone(self, store: Store, key: str) -> None:
        """A late copy of the attempt that failed neither clears nor shortens the slot of the retry."""
        granted(store, key, "a")
        release(store, key, "a", Outcome.RETRYING, again_ms=LONG)
        before = look(store, key).record

        assert refused(store, key, "a", token="copy").reason is Reason.FINISHED
        assert refused(store, key, "a", token="copy", wait_ms=self.short).reason is Reason.FINISHED

        after = look(store, key).record
        assert (after.slot, after.slot_expires_ms) == ("a", before.slot_expires_ms)

    def test_waiting_does_not_shorten_what_the_publisher_has_asked_for(self, store: Store, key: str) -> None:
        """A refused run keeps its slot for as long as its publisher has said; a reservation is its own."""
        granted(store, key, "a")
        store.queue(key, "b", ttl_ms=LONG, running_too=False)
        published = look(store, key).record.slot_expires_ms

        refused(store, key, "b", wait_ms=self.short)
        assert look(store, key).record.slot_expires_ms == published

        refused(store, key, "b", wait_ms=self.short, waits=Waits.FIRST)
        assert look(store, key).record.slot_expires_ms < published

    def test_those_who_have_waited_pass_each_others_reservation(self, store: Store, key: str) -> None:
        """A key that is free stands idle for nobody who asks for a reservation too; the reservation stays."""
        granted(store, key, "a")
        refused(store, key, "b", wait_ms=LONG, waits=Waits.FIRST)
        release(store, key, "a")

        granted(store, key, "c", wait_ms=LONG, waits=Waits.FIRST)

        record = look(store, key).record
        assert (record.slot, record.first) == ("b", True)
        release(store, key, "c")
        assert refused(store, key, "d", wait_ms=LONG).reason is Reason.RESERVED

    def test_a_reservation_lapses(self, store: Store, clock: FakeClock | RealClock, key: str) -> None:
        """A reservation whose run never comes back holds nobody back after its time."""
        granted(store, key, "a")
        refused(store, key, "b", wait_ms=self.short, waits=Waits.FIRST)
        release(store, key, "a")
        clock.advance(self.lapse)

        granted(store, key, "c")

    def test_a_published_run_takes_the_slot(self, store: Store, key: str) -> None:
        """A published run takes a free slot, may refresh its own, and keeps others out."""
        assert store.queue(key, "a", ttl_ms=LONG, running_too=True) is None
        assert store.queue(key, "a", ttl_ms=LONG, running_too=True) is None

        busy = store.queue(key, "b", ttl_ms=LONG, running_too=True)

        assert busy is not None
        assert (busy.reason, busy.run_id, busy.waiting) == (Reason.QUEUED, "a", "a")

    def test_a_published_run_meets_a_running_one_if_it_asks(self, store: Store, key: str) -> None:
        """With `running_too` a running run is in the way of the slot, without it only another waiter is."""
        granted(store, key, "a")

        busy = store.queue(key, "b", ttl_ms=LONG, running_too=True)

        assert busy is not None
        assert (busy.reason, busy.run_id) == (Reason.RUNNING, "a")
        assert store.queue(key, "b", ttl_ms=LONG, running_too=False) is None

    def test_a_run_that_has_started_takes_no_slot(self, store: Store, key: str) -> None:
        """A run whose worker was faster than its publisher leaves the slot free."""
        granted(store, key, "a")
        running = store.queue(key, "a", ttl_ms=LONG, running_too=True)
        release(store, key, "a")
        ended = store.queue(key, "a", ttl_ms=LONG, running_too=True)

        assert running is not None
        assert ended is not None
        assert (running.reason, ended.reason) == (Reason.FINISHED, Reason.FINISHED)
        assert look(store, key).record.slot == ""

    def test_only_its_own_run_clears_the_slot(self, store: Store, key: str) -> None:
        """A slot is cleared for its own run, not for another, and not where there is none."""
        assert store.unqueue(key, "a") is False
        store.queue(key, "a", ttl_ms=LONG, running_too=True)

        assert store.unqueue(key, "b") is False
        assert store.unqueue(key, "a") is True
        assert store.unqueue(key, "a") is False
        assert store.queue(key, "b", ttl_ms=LONG, running_too=True) is None

    def test_a_run_that_ends_waits_no_longer(self, store: Store, key: str) -> None:
        """A run that is ended before it came gives up its slot, whoever holds the lease."""
        granted(store, key, "a")
        refused(store, key, "b", wait_ms=LONG, waits=Waits.FIRST)
        release(store, key, "b", Outcome.CANCELLED)

        assert look(store, key).record.slot == ""
        assert refused(store, key, "c", wait_ms=LONG).waiting == "c"
        assert store.queue(key, "b", ttl_ms=LONG, running_too=False) is not None

    def test_a_release_said_twice_takes_no_place_for_a_run_that_works(self, store: Store, key: str) -> None:
        """A release with `again` whose reply was lost comes once more when its retry runs already."""
        granted(store, key, "a")
        release(store, key, "a", Outcome.RETRYING, again_ms=LONG)
        granted(store, key, "a", attempt=1)
        release(store, key, "a", Outcome.RETRYING, again_ms=LONG)

        assert look(store, key).record.slot == ""

    def test_a_retry_keeps_a_place(self, store: Store, key: str) -> None:
        """A release with `again` gives the run's own retry the slot, unless another run waits in it."""
        ran(store, key, "a", Outcome.REQUEUED)
        release(store, key, "a", Outcome.RETRYING, again_ms=LONG)
        assert look(store, key).record.slot == "a"

        granted(store, key, "b")
        release(store, key, "b", Outcome.RETRYING, again_ms=LONG)

        assert look(store, key).record.slot == "a"
