"""The contract of a record's memory: which tick a claim goes on from, and which runs are forgotten first."""
# ruff: noqa: S101, S106 - tests assert, and a lease's token is no password

from __future__ import annotations

from typing import TYPE_CHECKING

from singleflight.lease import Outcome, Reason
from singleflight.stores.base import RUNS_KEPT
from singleflight.testing.contract_base import LONG, Rules, granted, look, ran, refused, release

if TYPE_CHECKING:
    from singleflight.stores.base import Store
    from singleflight.testing.clock import FakeClock, RealClock


class RunRules(Rules):
    """What a record remembers of runs."""

    def test_a_claim_goes_on_only_from_the_run_it_knows(self, store: Store, key: str) -> None:
        """With `after`, a claim is refused if somebody else has gone on from that run already."""
        granted(store, key, "tick-1", after="")
        release(store, key, "tick-1")
        granted(store, key, "tick-2", after="tick-1")
        release(store, key, "tick-2")

        assert refused(store, key, "tick-2b", after="tick-1").reason is Reason.SUPERSEDED
        assert refused(store, key, "tick-2b", after="").reason is Reason.SUPERSEDED
        granted(store, key, "tick-3", after="tick-2")

    def test_a_ticks_own_redelivery_is_not_superseded(self, store: Store, key: str) -> None:
        """A claim with `after` may go on from its own run, which was given back."""
        granted(store, key, "tick-2", after="tick-1")
        release(store, key, "tick-2", Outcome.REQUEUED)

        granted(store, key, "tick-2", after="tick-1", token="again")

    def test_a_tick_given_back_to_an_empty_store_is_gone_on_from(self, store: Store, key: str) -> None:
        """A record that remembers no run answers a claim from another tick as any record does."""
        release(store, key, "tick-2", Outcome.REQUEUED)

        assert refused(store, key, "tick-3", after="tick-1").reason is Reason.SUPERSEDED
        granted(store, key, "tick-3", after="tick-2")

    def test_ended_runs_are_forgotten_first(self, store: Store, key: str) -> None:
        """Of more runs than a record remembers, the oldest ended one goes and an open one stays."""
        ran(store, key, "open", Outcome.REQUEUED)
        for number in range(RUNS_KEPT):
            ran(store, key, f"run-{number}")

        remembered = [run.run_id for run in look(store, key).record.runs]

        assert remembered == ["open", *(f"run-{number}" for number in range(1, RUNS_KEPT))]

    def test_open_runs_leave_room_for_ended_ones(self, store: Store, key: str) -> None:
        """Runs that never end are forgotten too, oldest first, when they are more than half of all."""
        for number in range(RUNS_KEPT):
            ran(store, key, f"open-{number}", Outcome.REQUEUED)
        for run in ("a", "b", "c"):
            ran(store, key, run)

        remembered = [run.run_id for run in look(store, key).record.runs]

        assert remembered == [*(f"open-{number}" for number in range(3, RUNS_KEPT)), "a", "b", "c"]
        assert refused(store, key, "a").reason is Reason.FINISHED

    def test_nobody_says_of_a_run_that_began_elsewhere_that_it_did_not(
        self, store: Store, clock: FakeClock | RealClock, key: str
    ) -> None:
        """A holder dies at work, and the next delivery of its run cannot start: the window stays."""
        granted(store, key, "a", ttl_ms=self.short, window_ms=LONG)
        clock.advance(self.lapse)
        granted(store, key, "a", token="elsewhere", window_ms=LONG)
        release(store, key, "a", Outcome.REQUEUED, token="elsewhere", began=False)

        assert refused(store, key, "b", window_ms=LONG).reason is Reason.WINDOW

    def test_a_retry_that_never_began_keeps_the_window_of_its_run(self, store: Store, key: str) -> None:
        """A later attempt has begun before, also where the store knows nothing of it any more."""
        granted(store, key, "a", attempt=1, window_ms=LONG)
        release(store, key, "a", Outcome.REQUEUED, attempt=1, began=False)

        assert refused(store, key, "b", window_ms=LONG).reason is Reason.WINDOW

    def test_a_run_gives_back_no_window_but_its_own(self, store: Store, key: str) -> None:
        """A run goes on within the window of another one; if it cannot start, that one's window stays."""
        ran(store, key, "a", Outcome.REQUEUED)
        ran(store, key, "b")
        granted(store, key, "a", token="again")
        release(store, key, "a", Outcome.REQUEUED, token="again", began=False)

        assert refused(store, key, "c", window_ms=LONG).reason is Reason.WINDOW

    def test_a_run_that_never_began_is_fresh_when_it_comes_again(self, store: Store, key: str) -> None:
        """A run that could not be started was no start: it respects the window of one that was."""
        granted(store, key, "a", window_ms=LONG)
        release(store, key, "a", Outcome.REQUEUED, began=False)
        assert look(store, key).record.runs == ()
        ran(store, key, "b", window_ms=LONG)

        busy = refused(store, key, "a", token="again", window_ms=LONG)

        assert (busy.reason, busy.resumed) == (Reason.WINDOW, False)

    def test_a_run_that_was_ended_before_it_began_is_never_started(self, store: Store, key: str) -> None:
        """Its window is given back; that it is over stays on record."""
        granted(store, key, "a", window_ms=LONG)
        release(store, key, "a", Outcome.CANCELLED, began=False)

        assert refused(store, key, "a", token="copy").reason is Reason.FINISHED
        granted(store, key, "b", window_ms=LONG)
