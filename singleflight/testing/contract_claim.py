"""The contract's rules about claims: who is granted, who is refused and why."""
# ruff: noqa: S101, S106, PLR2004 - tests assert, a lease's token is no password, numbers are the point

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from singleflight.lease import Granted, Outcome, Reason
from singleflight.stores.base import Claim
from singleflight.testing.clock import FakeClock
from singleflight.testing.contract_base import (
    HOLDER,
    LONG,
    Rules,
    claim,
    granted,
    look,
    ran,
    refused,
    release,
)

if TYPE_CHECKING:
    from singleflight.stores.base import Store
    from singleflight.testing.clock import RealClock

THREADS = 8


class ClaimRules(Rules):
    """Rules 1 to 7 of `Store.claim`."""

    def test_a_free_key_is_granted(self, store: Store, key: str) -> None:
        """A claim of a key that nobody knows is granted, from now on and for its ttl."""
        grant = granted(store, key, "a", holder=HOLDER.encode())
        record = look(store, key).record

        assert (grant.took_over, grant.opens_ms) == (False, 0)
        assert (record.run_id, record.fence, record.held) == ("a", grant.fence, True)
        assert record.started_ms == grant.started_ms
        assert LONG <= record.expires_ms - grant.started_ms <= LONG + self.late
        assert record.holder == HOLDER.encode()

    def test_a_replayed_claim_gets_the_same_grant(self, store: Store, key: str) -> None:
        """A claim whose reply was lost is recognised by its token and gets the same grant again."""
        first = granted(store, key, "a", window_ms=LONG)

        assert claim(store, key, "a", window_ms=LONG) == first

    def test_another_run_is_refused_while_the_lease_lives(self, store: Store, key: str) -> None:
        """While one run holds the lease, another is refused and told who holds it, and until when."""
        grant = granted(store, key, "a", holder=HOLDER.encode())

        busy = refused(store, key, "b")

        assert (busy.reason, busy.run_id, busy.holder) == (Reason.RUNNING, "a", HOLDER)
        assert 0 < busy.retry_after <= LONG / 1000 + self.clock_error
        assert busy.since == grant.started_ms / 1000
        assert (busy.resumed, busy.waiting, busy.ended) == (False, "", False)

    def test_another_delivery_of_the_same_run_is_refused(self, store: Store, key: str) -> None:
        """While one delivery of a run is alive, another delivery of that run is told so."""
        granted(store, key, "a")

        busy = refused(store, key, "a", token="another delivery")

        assert (busy.reason, busy.run_id, busy.resumed) == (Reason.SAME_RUN, "a", True)

    def test_a_finished_runs_copy_never_starts(self, store: Store, key: str) -> None:
        """After a final outcome no delivery of the run starts any more, whatever its attempt."""
        for outcome in (Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELLED):
            run = f"run-{outcome}"
            ran(store, key, run, outcome)

            for attempt in (0, 7):
                busy = refused(store, key, run, attempt, token="late copy")
                assert (busy.reason, busy.resumed, busy.ended) == (Reason.FINISHED, False, True)

    def test_a_finished_runs_copy_is_recognised_while_another_runs(self, store: Store, key: str) -> None:
        """A copy of an ended run is told FINISHED, not RUNNING, even while another run holds the lease."""
        ran(store, key, "a")
        granted(store, key, "b")

        busy = refused(store, key, "a", token="late copy")

        assert (busy.reason, busy.run_id, busy.ended) == (Reason.FINISHED, "b", False)

    def test_a_retry_runs_and_its_predecessors_copy_does_not(self, store: Store, key: str) -> None:
        """After a retry the next attempt is granted, a copy of the last one is not, and no run has ended."""
        ran(store, key, "a", Outcome.RETRYING)

        copy = refused(store, key, "a", token="late copy")
        granted(store, key, "a", 1)
        older = refused(store, key, "a", token="late copy")

        assert (copy.reason, copy.ended) == (Reason.FINISHED, False)
        assert older.reason is Reason.FINISHED

    def test_a_requeued_run_starts_again(self, store: Store, key: str) -> None:
        """A run that was put back is granted when it returns, inside its own window too."""
        first = ran(store, key, "a", Outcome.REQUEUED, window_ms=LONG)

        again = granted(store, key, "a", token="second delivery", window_ms=LONG)

        assert again.fence > first.fence
        assert (again.started_ms, again.opens_ms) == (first.started_ms, first.opens_ms)

    def test_an_expired_lease_is_taken_over(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """A lease that nobody renewed is free after its ttl, and its taker learns that it took over."""
        dead = granted(store, key, "a", ttl_ms=self.short)
        clock.advance(self.lapse)

        taker = granted(store, key, "b")

        assert taker.took_over
        assert taker.fence > dead.fence

    def test_a_crashed_runs_redelivery_is_never_a_duplicate(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """A run that started and never ended is `resumed`: it waits for others and then goes on."""
        granted(store, key, "a", ttl_ms=self.short, window_ms=LONG)
        clock.advance(self.lapse)
        granted(store, key, "b", 1)

        busy = refused(store, key, "a", token="redelivery")
        release(store, key, "b", attempt=1)

        assert (busy.reason, busy.resumed) == (Reason.RUNNING, True)
        assert granted(store, key, "a", token="redelivery").took_over is False

    def test_inside_the_window_no_new_run_starts(self, store: Store, key: str) -> None:
        """Within the window after a start no other run starts, though the lease is free."""
        ran(store, key, "a", window_ms=LONG, holder=HOLDER.encode())

        busy = refused(store, key, "b")

        assert (busy.reason, busy.run_id, busy.holder, busy.ended) == (Reason.WINDOW, "a", HOLDER, True)
        assert 0 < busy.retry_after <= LONG / 1000 + 0.001 + self.clock_error

    def test_the_window_counts_from_the_start_of_the_run(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """The window slides: it ends exactly its length after the start, not at a round time."""
        for number in range(3):
            grant = ran(store, key, f"run-{number}", window_ms=self.short)
            assert self.short <= grant.opens_ms - grant.started_ms <= self.short + self.late
            assert look(store, key).record.opens_ms == grant.opens_ms
            clock.advance(1.3 * self.lapse)

    def test_the_instant_a_window_ends_still_belongs_to_it(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """At the last instant of the window a run is refused, a millisecond later it is granted."""
        grant = ran(store, key, "a", window_ms=10 * self.short)
        if isinstance(clock, FakeClock):
            # With a real clock the exact instant cannot be met; then only the passing is looked at.
            clock.advance(10 * self.tick - 0.001)
            assert refused(store, key, "b").reason is Reason.WINDOW
            clock.advance(0.001)
            assert look(store, key).now_ms == grant.opens_ms
            assert refused(store, key, "b").retry_after == 0.001
            clock.advance(0.001)
        else:
            clock.advance(11 * self.tick + self.clock_error)

        granted(store, key, "b")

    def test_a_claims_own_window_counts_too(self, store: Store, key: str) -> None:
        """A claim with a longer window than the last run's is judged by its own, from the same start."""
        ran(store, key, "a")

        assert refused(store, key, "b", window_ms=LONG).reason is Reason.WINDOW
        granted(store, key, "c")

    def test_a_shorter_window_does_not_shorten_the_records(self, store: Store, key: str) -> None:
        """A run that goes on from an earlier start keeps the longer of both windows."""
        first = ran(store, key, "a", Outcome.RETRYING, window_ms=LONG)
        again = granted(store, key, "a", 1, window_ms=1)

        assert again.opens_ms == first.opens_ms

    def test_a_retry_is_exempt_from_the_window(self, store: Store, key: str) -> None:
        """A run's own next attempt starts inside the window, also when the record forgot the run."""
        ran(store, key, "a", window_ms=LONG)

        granted(store, key, "retry of a forgotten run", 1)

    def test_the_fence_grows_with_every_grant(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """The fence grows over release, expiry, eviction and the loss of the record."""
        fences = [ran(store, key, "a").fence, ran(store, key, "b").fence]
        fences.append(granted(store, key, "c", ttl_ms=self.short).fence)
        clock.advance(self.lapse)
        fences.append(granted(store, key, "d").fence)
        store.evict(key)
        fences.append(granted(store, key, "e").fence)
        self.lose(store, key)
        clock.advance(self.tick)
        fences.append(granted(store, key, "f").fence)

        assert fences == sorted(set(fences))

    def test_keys_do_not_touch_each_other(self, store: Store, key: str) -> None:
        """Leases of different keys are independent, whatever characters keys and names have."""
        names = ["{x}", "}{", "ключ", "КЛЮЧ", "a", "A", "a ", "a\n", "à", '"[1,2]"', "🙂"]
        # Every key ends with its hash: that MySQL does not see blanks at an end is no harm.
        keys = {name: f"singleflight:{name}:{key}" for name in names}
        for name in names:
            granted(store, keys[name], name, holder=HOLDER.encode())

        for name in names:
            assert refused(store, keys[name], "other").run_id == name

    def test_of_many_claims_at_once_one_is_granted(self, store: Store, key: str) -> None:
        """Of many threads that claim one free key at the same moment exactly one is granted."""
        start = threading.Barrier(THREADS)

        def run(number: int) -> bool:
            start.wait(timeout=10)
            return isinstance(claim(store, key, f"run-{number}"), Granted)

        with ThreadPoolExecutor(THREADS) as pool:
            answers = list(pool.map(run, range(THREADS)))

        assert answers.count(True) == 1

    def test_no_two_runs_hold_the_key_at_once(self, store: Store, key: str) -> None:
        """Threads that claim and release in turn never hold the key together, and every fence is new."""
        inside = threading.Lock()
        fences: list[int] = []

        def work(number: int) -> int:
            overlaps = 0
            for turn in range(20):
                run = f"run-{number}-{turn}"
                answer = store.claim(Claim(key, run, 0, run, LONG))
                if isinstance(answer, Granted):
                    if not inside.acquire(blocking=False):
                        overlaps += 1
                        continue
                    fences.append(answer.fence)
                    inside.release()
                    release(store, key, run, token=run)
            return overlaps

        with ThreadPoolExecutor(THREADS) as pool:
            assert sum(pool.map(work, range(THREADS))) == 0

        assert fences
        assert fences == sorted(set(fences))
