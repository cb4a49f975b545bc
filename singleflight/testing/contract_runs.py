"""The contract of a record's memory: which tick a claim goes on from, and which runs are forgotten first."""
# ruff: noqa: S101, S106 - tests assert, and a lease's token is no password

from __future__ import annotations

from typing import TYPE_CHECKING

from singleflight.lease import Outcome, Reason
from singleflight.stores.base import RUNS_KEPT
from singleflight.testing.contract_base import Rules, granted, look, ran, refused, release

if TYPE_CHECKING:
    from singleflight.stores.base import Store


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
