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
        self.known = look is not None
        """Whether there is a record."""
        self._record = Record() if look is None else look.record
        self._now_ms = 0 if look is None else look.now_ms
        self.forgotten_in = 0.0 if look is None else look.remaining_ms / 1000

    @property
    def now(self) -> float:
        """Epoch seconds on the store's clock."""
        return self._now_ms / 1000

    @property
    def run_id(self) -> str:
        """The run that was granted the lease last; empty if none was."""
        return self._record.run_id

    @property
    def held(self) -> bool:
        """Whether that run's lease was neither released nor evicted; it may have lapsed."""
        return self._record.held

    @property
    def running(self) -> bool:
        """Whether that run has the lease, so that another one would be refused."""
        return self._record.held and self._record.expires_ms > self._now_ms

    @property
    def holder(self) -> Holder | None:
        """Who that run's task, host and process are."""
        return Holder.decode(self._record.holder)

    @property
    def fence(self) -> int:
        """The number of its grant."""
        return self._record.fence

    @property
    def ttl(self) -> float:
        """The length of its lease."""
        return self._record.ttl_ms / 1000

    @property
    def started(self) -> float | None:
        """When it started: epoch seconds on the store's clock."""
        return self._record.started_ms / 1000 if self._record.started_ms else None

    @property
    def started_ago(self) -> float | None:
        """How long ago that is."""
        return self._ago(self._record.started_ms)

    @property
    def time_left(self) -> float | None:
        """Until the lease lapses, if it is held."""
        return self._left(self._record.expires_ms) if self._record.held else None

    @property
    def outcome(self) -> str:
        """How that run ended; empty if it has not."""
        return self._record.outcome

    @property
    def in_window(self) -> bool:
        """Whether it is too soon for another run to start."""
        return self._record.opens_ms >= self._now_ms > 0

    @property
    def window_left(self) -> float | None:
        """Until it is not."""
        return self._left(self._record.opens_ms)

    @property
    def waiting(self) -> str:
        """The run in the waiting slot; empty if there is none."""
        return self._record.slot if self._record.slot_expires_ms > self._now_ms else ""

    @property
    def waiting_left(self) -> float | None:
        """Until that run is not waited for any more."""
        return self._left(self._record.slot_expires_ms) if self.waiting else None

    @property
    def refused(self) -> int:
        """How many claims that did not wait met another run, as far as the store counts them."""
        return self._record.refused

    @property
    def refused_ago(self) -> float | None:
        """How long ago the last one was."""
        return self._ago(self._record.refused_ms)

    @property
    def refused_reason(self) -> str:
        """Why it was refused."""
        return self._record.refused_reason

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
