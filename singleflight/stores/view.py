"""What a record says, in answers to questions: nobody outside of stores reads its fields; pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from singleflight.identity import message_id_of
from singleflight.lease import Busy, Holder, Outcome, Reason
from singleflight.status import Status
from singleflight.stores.base import INFINITE, Record

if TYPE_CHECKING:
    from singleflight.stores.base import Look


class Remembered(NamedTuple):
    """A run that a record tells of."""

    run_id: str
    attempt: int | None
    """The highest one that was begun; None if the run has ended for good."""
    ended: bool
    """Whether that attempt has ended."""


class View:
    """A key at the moment when a store was asked for it; of one that the store does not know, all is empty.

    Durations are seconds by the store's clock, None where something does not apply.
    """

    def __init__(self, look: Look | None) -> None:
        """Take what `Store.peek` has returned."""
        record = self._record = Record() if look is None else look.record
        now_ms = self._now_ms = 0 if look is None else look.now_ms
        self.known = look is not None
        """Whether there is a record."""
        self.forgotten_in = 0.0 if look is None else look.remaining_ms / 1000
        self.now = now_ms / 1000
        """Epoch seconds on the store's clock."""

        self.run_id = record.run_id
        """The run that was granted the lease last; empty if none was."""
        self.held = record.held
        """Whether its lease was neither released nor evicted; it may have lapsed."""
        self.running = record.held and record.expires_ms > now_ms
        """Whether it has the lease, so that another one would be refused."""
        self.fence = record.fence
        self.ttl = record.ttl_ms / 1000
        self.started = record.started_ms / 1000 if record.started_ms else None
        """When it started: epoch seconds on the store's clock."""
        self.started_ago = self._ago(record.started_ms)
        self.time_left = self._left(record.expires_ms) if record.held else None
        """Until its lease lapses."""
        self.outcome = record.outcome
        """How it ended; empty if it has not."""
        self.in_window = record.opens_ms >= now_ms > 0
        """Whether it is too soon for another run to start."""
        self.window_left = self._left(record.opens_ms)

        self.waiting = record.slot if record.slot_expires_ms > now_ms else ""
        """The run in the waiting slot; empty if there is none."""
        self.waiting_left = self._left(record.slot_expires_ms) if self.waiting else None
        self.refused = record.refused
        """How many claims that did not wait met another run, as far as the store counts them."""
        self.refused_ago = self._ago(record.refused_ms)
        self.refused_reason = record.refused_reason

    @property
    def holder(self) -> Holder | None:
        """Who the task, host and process of the last run are."""
        return Holder.decode(self._record.holder)

    @property
    def runs(self) -> list[Remembered]:
        """The runs that are remembered, the latest first."""
        return [
            Remembered(run.run_id, None if run.attempt >= INFINITE else run.attempt, run.ended)
            for run in reversed(self._record.runs)
        ]

    @property
    def known_runs(self) -> list[str]:
        """The runs that the record tells of: one that has had the key, or has asked to wait for it."""
        runs = (self._record.run_id, self._record.slot, *(run.run_id for run in self._record.runs))
        return [run for run in runs if run]

    def begun(self, run_id: str) -> bool:
        """Whether a run was granted the lease at least once."""
        return any(run.run_id == run_id for run in self._record.runs)

    def over(self, run_id: str) -> bool:
        """Whether a run has ended for good."""
        return any(run.run_id == run_id and run.attempt is None for run in self.runs)

    def between_attempts(self, run_id: str) -> bool:
        """Whether a run has failed and its retry is still to come."""
        return any(run.run_id == run_id and run.ended and run.attempt is not None for run in self.runs)

    def is_open(self, token: str) -> bool:
        """Whether the delivery with this token was granted last, and has not said how it ended."""
        return self._record.token == token and self._record.outcome in ("", Outcome.REQUEUED)

    def in_the_way(self, *, running_too: bool) -> Busy | None:
        """Return the run that waits, or, if that counts, works."""
        if self.waiting and not self.over(self.waiting):
            return Busy(Reason.QUEUED, self.waiting, self.waiting_left or 0.0)
        if running_too and self.running:
            return Busy(Reason.RUNNING, self.run_id, self.time_left or 0.0, self.holder, self.started or 0.0)
        return None

    @property
    def contents(self) -> object:
        """What is equal to that of another view of the key unless the record has changed in between."""
        return self._record

    def status(self, key: str) -> Status:
        """Return what `singleflight.peek` tells."""
        if not self.known:
            return Status(key=key)
        outcome: Outcome | None = None
        if not self.held:
            with suppress(ValueError):  # none yet, or one of a version to come
                outcome = Outcome(self.outcome)
        return Status(
            key=key,
            running=self.running,
            run_id=message_id_of(self.run_id),
            holder=self.holder,
            since=self.started,
            age=self.started_ago,
            expires_in=(self.time_left or 0.0) if self.running else 0.0,
            opens_in=self.window_left or 0.0,
            waiting=message_id_of(self.waiting),
            outcome=outcome,
            fence=self.fence,
        )

    def _ago(self, moment_ms: int) -> float | None:
        return max(0, self._now_ms - moment_ms) / 1000 if moment_ms else None

    def _left(self, moment_ms: int) -> float | None:
        return (moment_ms - self._now_ms) / 1000 if moment_ms > self._now_ms else None
