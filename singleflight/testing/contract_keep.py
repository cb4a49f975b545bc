"""The contract's rules about what follows a grant: renewal, release, eviction, and the record's own life."""
# ruff: noqa: S101, S106 - tests assert, and a lease's token is no password

from __future__ import annotations

from typing import TYPE_CHECKING

from singleflight.lease import Granted, Outcome, Reason
from singleflight.stores.base import Renewal, Renewed
from singleflight.testing.clock import FakeClock
from singleflight.testing.contract_base import (
    LONG,
    Rules,
    claim,
    granted,
    look,
    ran,
    refused,
    release,
    renew,
    token_of,
)

if TYPE_CHECKING:
    from singleflight.stores.base import Store
    from singleflight.testing.clock import RealClock


class KeepRules(Rules):
    """What `Store.renew`, `Store.release` and `Store.evict` promise."""

    def test_a_renewal_counts_from_now(self, store: Store, key: str) -> None:
        """A renewal sets the remaining time to the ttl; nothing is added on top of what was left."""
        grant = granted(store, key, "a", ttl_ms=LONG)
        for _ in range(3):
            assert renew(store, key, "a", grant) is Renewed.RENEWED
        seen = look(store, key)

        assert 0 < seen.record.expires_ms - seen.now_ms <= LONG + self.late
        assert seen.record.fence == grant.fence

    def test_a_renewal_may_change_the_ttl(self, store: Store, key: str) -> None:
        """A renewal brings its own ttl, shorter or longer."""
        grant = granted(store, key, "a", ttl_ms=LONG)
        assert renew(store, key, "a", grant, ttl_ms=LONG // 2) is Renewed.RENEWED
        seen = look(store, key)

        assert seen.record.expires_ms - seen.now_ms <= LONG // 2 + self.late

    def test_a_lapsed_lease_that_nobody_took_is_renewed(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """A holder that was away too long goes on under its fence if nobody else was granted."""
        grant = granted(store, key, "a", ttl_ms=self.short)
        clock.advance(self.lapse)

        assert renew(store, key, "a", grant) is Renewed.RENEWED
        assert refused(store, key, "b").reason is Reason.RUNNING

    def test_a_stale_holder_cannot_renew(self, store: Store, clock: FakeClock | RealClock, key: str) -> None:
        """A renewal after somebody else was granted is LOST and changes nothing."""
        stale = granted(store, key, "a", ttl_ms=self.short)
        clock.advance(self.lapse)
        granted(store, key, "b")
        before = look(store, key).record

        assert renew(store, key, "a", stale) is Renewed.LOST
        assert look(store, key).record == before

    def test_a_released_lease_cannot_be_renewed(self, store: Store, key: str) -> None:
        """A renewal that arrives after the release is LOST and does not bring the lease back."""
        grant = ran(store, key, "a", Outcome.REQUEUED)

        assert renew(store, key, "a", grant) is Renewed.LOST
        granted(store, key, "b")

    def test_a_lease_on_its_way_out_cannot_be_renewed(self, store: Store, key: str) -> None:
        """A lease that was shortened at its release is not lengthened again by a late renewal."""
        grant = granted(store, key, "a")
        release(store, key, "a", Outcome.FAILED, grace_ms=LONG // 2)
        before = look(store, key).record

        assert renew(store, key, "a", grant) is Renewed.LOST
        assert look(store, key).record == before

    def test_a_lost_record_is_written_back(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """A renewal writes a lost record back: the holder, its fence, its run and its window."""
        grant = granted(store, key, "a", window_ms=2 * LONG)
        self.lose(store, key)

        assert renew(store, key, "a", grant, ttl_ms=self.short) is Renewed.RESTORED
        record = look(store, key).record
        assert (record.token, record.fence) == (token_of("a"), grant.fence)
        assert (record.started_ms, record.opens_ms) == (grant.started_ms, grant.opens_ms)
        clock.advance(self.lapse)
        assert refused(store, key, "b").reason is Reason.WINDOW
        assert granted(store, key, "a", token="redelivery").fence > grant.fence

    def test_a_record_lost_long_ago_is_not_written_back(self, store: Store, key: str) -> None:
        """A renewal older than the store remembers is LOST and leaves no record behind."""
        grant = granted(store, key, "a")
        self.lose(store, key)

        assert renew(store, key, "a", grant, age_ms=round(store.remember * 1000)) is Renewed.LOST
        assert store.peek(key) is None

    def test_every_renewal_of_many_gets_its_own_answer(self, store: Store, key: str) -> None:
        """Renewals sent together are answered one by one and in order."""
        keys = [f"{key}:{number}" for number in range(3)]
        grants = [granted(store, each, "a") for each in keys]
        release(store, keys[1], "a")
        self.lose(store, keys[2])

        answers = store.renew(
            [
                Renewal(each, "a", 0, token_of("a"), grant.fence, LONG)
                for each, grant in zip(keys, grants, strict=True)
            ]
        )

        assert list(answers) == [Renewed.RENEWED, Renewed.LOST, Renewed.RESTORED]
        assert list(store.renew([])) == []

    def test_a_release_frees_the_key(self, store: Store, key: str) -> None:
        """After its holder's release the key is free at once, and its taker took nothing over."""
        granted(store, key, "a")

        assert release(store, key, "a") is True
        assert look(store, key).record.outcome == Outcome.FINISHED
        assert granted(store, key, "b").took_over is False

    def test_a_stale_holder_cannot_free_anothers_lease(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """A release by a delivery that lost its lease neither frees nor shortens its successor's."""
        granted(store, key, "a", ttl_ms=self.short)
        clock.advance(self.lapse)
        granted(store, key, "b")
        before = look(store, key).record

        assert release(store, key, "a", began=False) is False
        assert release(store, key, "a", grace_ms=1) is False
        after = look(store, key).record
        assert (after.token, after.held, after.expires_ms) == (before.token, True, before.expires_ms)
        assert (after.started_ms, after.opens_ms) == (before.started_ms, before.opens_ms)

    def test_a_stale_holders_end_is_recorded(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """The end of a run is recorded even if its delivery had lost the lease."""
        granted(store, key, "a", ttl_ms=self.short)
        clock.advance(self.lapse)
        granted(store, key, "b")
        release(store, key, "a")

        assert refused(store, key, "a", token="late copy").reason is Reason.FINISHED

    def test_the_end_of_a_run_is_recorded_without_a_record(self, store: Store, key: str) -> None:
        """A release of a record that was lost still makes later copies of the run FINISHED."""
        granted(store, key, "a")
        self.lose(store, key)

        assert release(store, key, "a") is False
        assert refused(store, key, "a", token="late copy").reason is Reason.FINISHED
        granted(store, key, "b")

    def test_a_second_release_changes_nothing(self, store: Store, key: str) -> None:
        """A release whose reply was lost may be sent again, and the first outcome stays."""
        ran(store, key, "a", Outcome.FINISHED)

        assert release(store, key, "a", Outcome.FAILED) is True
        assert look(store, key).record.outcome == Outcome.FINISHED

    def test_a_grace_shortens_the_lease(self, store: Store, clock: FakeClock | RealClock, key: str) -> None:
        """With a grace the key stays taken for that long, for a body that is being killed."""
        granted(store, key, "a")
        assert release(store, key, "a", Outcome.FAILED, grace_ms=LONG // 2)
        seen = look(store, key)
        assert 0 < seen.record.expires_ms - seen.now_ms <= LONG // 2 + self.late
        assert refused(store, key, "b").reason is Reason.RUNNING

        assert release(store, key, "a", Outcome.FAILED, grace_ms=self.short)
        clock.advance(self.lapse)

        granted(store, key, "b")

    def test_a_grace_never_lengthens_the_lease(self, store: Store, key: str) -> None:
        """A grace longer than what is left changes nothing."""
        granted(store, key, "a", ttl_ms=LONG)
        before = look(store, key).record.expires_ms
        release(store, key, "a", Outcome.FAILED, grace_ms=10 * LONG)

        assert look(store, key).record.expires_ms == before

    def test_a_run_that_never_began_gives_its_window_back(self, store: Store, key: str) -> None:
        """If no body of the run ever started, the next run need not wait for the window."""
        granted(store, key, "a", window_ms=LONG)
        release(store, key, "a", Outcome.REQUEUED, began=False)

        granted(store, key, "b", window_ms=LONG)

    def test_an_evicted_holder_learns_that_it_lost(self, store: Store, key: str) -> None:
        """Eviction frees key and window at once, and the holder's renewal is LOST."""
        grant = granted(store, key, "a", window_ms=LONG)

        assert store.evict(key) is True
        assert renew(store, key, "a", grant) is Renewed.LOST
        assert granted(store, key, "b").fence > grant.fence

    def test_an_eviction_forgets_no_run(self, store: Store, key: str) -> None:
        """After an eviction a copy of an ended run is still known, and the evicted run may go on."""
        ran(store, key, "old")
        granted(store, key, "a")
        store.evict(key)

        assert refused(store, key, "old", token="late copy").reason is Reason.FINISHED
        granted(store, key, "a", token="redelivery", window_ms=LONG)

    def test_nothing_is_evicted_where_nothing_is(self, store: Store, key: str) -> None:
        """Eviction of an unknown key says so and leaves no record."""
        assert store.evict(key) is False
        assert store.peek(key) is None


class LifeRules(Rules):
    """How long records live, and what clocks may do to them."""

    def test_no_record_lives_for_ever(self, store: Store, key: str) -> None:
        """After every operation the record has an end: the latest of its times, plus `remember`."""
        remember_ms = round(store.remember * 1000)

        def check(longest: int) -> None:
            assert 0 < look(store, key).remaining_ms <= longest + remember_ms + self.late

        grant = granted(store, key, "a", window_ms=2 * LONG)
        check(2 * LONG)
        renew(store, key, "a", grant)
        check(2 * LONG)
        refused(store, key, "b", wait_ms=3 * LONG)
        check(3 * LONG)
        store.unqueue(key, "b")
        release(store, key, "a")
        check(2 * LONG)
        store.queue(key, "c", ttl_ms=LONG, running_too=True)
        check(2 * LONG)
        store.evict(key)
        check(LONG)
        self.lose(store, key)
        release(store, key, "d")
        check(0)
        self.lose(store, key)
        store.queue(key, "e", ttl_ms=LONG, running_too=True)
        check(LONG)

    def test_an_ended_run_is_remembered(self, store: Store, clock: FakeClock | RealClock, key: str) -> None:
        """A record outlives its last use by `remember`, and its window by as much."""
        remember_ms = round(store.remember * 1000)
        ran(store, key, "a", window_ms=LONG)

        # No test lasts a tenth of the time that a store remembers by default.
        assert look(store, key).remaining_ms > LONG + remember_ms * 0.9 - LONG / 2
        if self.can_advance:
            clock.advance(LONG / 1000 + store.remember - 0.001)
            assert refused(store, key, "a", token="late copy").reason is Reason.FINISHED
            clock.advance(store.remember + 0.001)
            assert store.peek(key) is None

    def test_looking_changes_nothing(self, store: Store, key: str) -> None:
        """Reading a record neither creates nor changes nor prolongs it."""
        assert store.peek(key) is None
        granted(store, key, "a")
        first, second = look(store, key), look(store, key)

        assert first.record == second.record
        assert second.remaining_ms <= first.remaining_ms
        assert second.now_ms >= first.now_ms

    def test_a_clock_that_steps_back_does_not_lengthen_a_lease(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """After the store's clock stepped back, neither lease nor window outlasts its own length."""
        grant = granted(store, key, "a", window_ms=2 * LONG)
        if isinstance(clock, FakeClock):
            # Only an injected clock can be set back; a store without one is judged on the rest.
            clock.step_back(24 * 3600)
            renewed = renew(store, key, "a", grant)
            assert renewed is Renewed.RENEWED
        seen = look(store, key)

        assert seen.record.expires_ms - seen.now_ms <= LONG + self.late
        assert seen.record.started_ms <= seen.now_ms
        assert seen.record.opens_ms - seen.now_ms <= 2 * LONG + self.late
        release(store, key, "a", began=False)
        assert isinstance(claim(store, key, "b"), Granted)
