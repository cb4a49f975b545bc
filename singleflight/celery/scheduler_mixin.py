"""What makes a beat scheduler share its ticks with other replicas: a mixin that goes before its class.

A schedule is asked as Celery asks it, through its entry, and what it says is passed on as it is. Only the
last run that it is asked about is the one that all replicas share, and a tick that it calls due is claimed
before anything is advanced or announced:

- in `is_due`, which Celery's own loop asks: a tick that is another replica's is not due here;
- in `apply_entry`, `apply_async` or redbeat's `maybe_due`, for schedulers whose loop does not ask it.

Of Celery's private parts it uses two: ``_heap`` and ``_when``.
"""

from __future__ import annotations

import heapq
from operator import is_
from typing import TYPE_CHECKING, Any

import celery
from celery.beat import Scheduler
from celery.schedules import schedstate

from singleflight.celery.beat_checks import of_jitter, of_window
from singleflight.celery.beat_entries import counts_from_start, take_back
from singleflight.celery.beat_failures import ENTRY
from singleflight.celery.beat_options import IN_ENTRY, BeatOptions
from singleflight.celery.due_entries import EARLY, DueEntries
from singleflight.celery.marks import unmarked
from singleflight.celery.publish import ticking
from singleflight.celery.schedule_times import in_utc, in_zone_of, later
from singleflight.celery.ticks import Claimed, Later, Ticks, give_back
from singleflight.errors import Conflict
from singleflight.lease import monotonic
from singleflight.log import logger
from singleflight.policy import Singleton, resolve

if TYPE_CHECKING:
    from celery import Celery

    from singleflight.celery.runtime import Runtime
    from singleflight.celery.schedule_times import Tick

TTL = 5.0
"""Seconds for which a replica that dies between claim and confirmation holds up one tick."""

REMEMBER = 400 * 86400.0
"""Seconds for which the store knows an entry's last tick: a year, the longest usual interval, and more."""

LEARNING = 0.2
"""Seconds of each pass that go into reading last ticks, so that 10,000 entries hold up no tick for long."""

ASKS_TOO_EARLY = celery.VERSION < (5, 7)
"""Before 5.7 Celery asks the first entry of its heap in each pass, whenever that wanted to be asked, and
leaves it there if it is not due (celery#7649)."""


PLANNED = "singleflight_planned"
"""The header with the planned time that a message was sent for."""


class SharedTicks(Scheduler):
    """What goes before the wrapped scheduler class; see the module."""

    _heap: list[Any] | None

    def __init__(self, app: Celery, **options: Any) -> None:
        runtime: Runtime = app.singleflight
        ttl = resolve(Singleton(ttl=runtime.setting("beat_ttl", TTL))).ttl  # refuses a wrong value by name
        leases = runtime.open_leases(remember=REMEMBER)
        self._ticks = Ticks(leases, runtime.prefix, ttl=ttl)
        self._options = BeatOptions(runtime)
        self._due = DueEntries(self._ticks, super().is_due, self._options.of, 2 * ttl)
        self._runtime = runtime
        self._learned: set[str] = set()
        self._checked: set[str] = set()
        self._unlearned: list[Any] = []
        self._moves: dict[str, float] = {}
        self._closed = False
        super().__init__(app=app, **options)

    @property
    def remember(self) -> float:
        """Seconds for which the store knows an entry's last tick."""
        return self._ticks.remember

    @property
    def named(self) -> set[str]:
        """The entries that have options in the settings."""
        return self._options.names

    def risks(self) -> list[str]:
        """Return what is dangerous about the store, one sentence with its remedy each."""
        return self._ticks.risks()

    # The loop

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Let the wrapped scheduler make one pass; give back what it claimed and did not send.

        Raises:
            SystemExit: if beat was told to stop. Celery raises it in a signal handler, and one that strikes
                while a driver reads is swallowed by that driver's clean-up.
        """
        if self._closed:
            raise SystemExit
        try:
            delay: float = super().tick(*args, **kwargs)
        finally:
            self._due.drop()
        self._learn()
        if self._moves:
            delay = min(delay, self._move())
        return min(delay, self._ticks.rests) if self._unlearned else delay

    def close(self) -> None:
        """Note that this is the end: Celery's signal handler closes the scheduler before all else."""
        self._closed = True
        super().close()

    def _move(self) -> float:
        """Put entries where they belong in the heap; return in how many seconds the first is to be asked."""
        moves, self._moves = self._moves, {}
        heap = self._heap
        if not heap:
            return float(self.max_interval)
        for place, (_, priority, entry) in enumerate(heap):
            if entry.name in moves:
                heap[place] = type(heap[place])(self._when(entry, moves[entry.name]), priority, entry)
        heapq.heapify(heap)
        first: float = heap[0][0] - self._when(heap[0][2], 0)
        return max(0.0, first)

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Order the entries by their shared last runs; note those whose last run is not known."""
        self._unlearned = []
        for entry in self.schedule.values():
            if entry.name in self._due.known:
                self._due.follow(entry)
            if entry.name not in self._learned and not entry.total_run_count:
                self._unlearned.append(entry)
            if entry.name not in self._checked:
                self._checked.add(entry.name)
                for text in (of_window(self._runtime, entry), of_jitter(entry, self._options.of(entry))):
                    if text:
                        logger.warning("singleflight: %s", text)
        super().populate_heap(*args, **kwargs)

    def schedules_equal(self, old_schedules: Any, new_schedules: Any) -> Any:
        """Compare as the wrapped scheduler does, but no entry with itself: of 10,000, that is all but one."""
        if old_schedules is None or new_schedules is None:
            return super().schedules_equal(old_schedules, new_schedules)
        same = map(is_, old_schedules.values(), new_schedules.values())
        if len(old_schedules) == len(new_schedules) and all(same):
            return super().schedules_equal({}, {})
        old = {name: entry for name, entry in old_schedules.items() if new_schedules.get(name) is not entry}
        new = {name: entry for name, entry in new_schedules.items() if old_schedules.get(name) is not entry}
        equal = super().schedules_equal(old, new)
        if equal:
            old_schedules.update(new)
        return equal

    def _learn(self) -> None:
        """Read the last ticks of entries that never ran here, so that what no beat sent is due."""
        if not self._unlearned:
            return
        end = monotonic() + LEARNING
        planned = {entry.name: time for time, _, entry in self._heap or ()}
        while self._unlearned and monotonic() < end:
            entry = self._unlearned[-1]
            last = self._ticks.last(entry.name)
            if last is None and counts_from_start(entry):
                now = in_utc(entry.default_now())
                wait = planned.get(entry.name, 0.0) - self._when(entry, 0)
                last = self._ticks.begin(entry.name, in_utc(entry.last_run_at), later(now, wait))
            if isinstance(last, Later):
                break
            if last is not None and not self._due.follow(entry).run_id:
                before = entry.last_run_at
                self._due.known[entry.name] = last
                self._due.follow(entry)
                if entry.last_run_at != before:
                    self._moves[entry.name] = 0.0
            self._learned.add(self._unlearned.pop().name)

    # One entry

    def is_due(self, entry: Any) -> Any:
        """Return whether an entry is due and this replica's to send, and the seconds until asked again."""
        self._due.drop()
        heap = self._heap
        if ASKS_TOO_EARLY and heap and heap[0][2] is entry:
            early: float = heap[0][0] - self._when(entry, 0)
            if early > 0:
                return schedstate(False, early + EARLY)
        answer = self._due.take(entry)
        if isinstance(answer, Claimed):
            return schedstate(True, self._due.next)
        if ASKS_TOO_EARLY and heap and heap[0][2] is entry:
            self._moves[entry.name] = self.max_interval if answer.delay is None else answer.delay
        return schedstate(False, answer.delay)

    def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
        """Do what redbeat does with an entry, if its tick is this replica's."""
        answer = self._due.take(entry)
        return answer.delay if isinstance(answer, Later) else super().maybe_due(entry, **kwargs)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a tick, if it is this replica's."""
        if isinstance(self._due.take(entry), Claimed):
            super().apply_entry(entry, producer=producer)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - Celery's
        """Publish a tick and confirm it, if it is this replica's; else return None."""
        claimed = self._due.take(entry)
        if isinstance(claimed, Later):
            return None
        self._due.claimed = None
        try:
            if not claimed.lease.held:
                logger.warning("singleflight: %s: claimed too long ago to be sent now", claimed.lease.run_id)
                self._fail(entry, claimed)
                return None
            result = self._publish(entry, claimed, producer=producer, **kwargs)
        except BaseException as error:
            # Celery wraps what publishing raised; a task that was told to refuse duplicates has had its tick.
            if isinstance(error.__context__, Conflict):
                self._due.sent(claimed)
            else:
                self._fail(entry, claimed)
            raise
        self._due.sent(claimed)
        # Only now: should we die before, an entry in a database is still due for the others.
        if advance and not self._closed:
            self._advance(entry, claimed.tick)
        return result

    def _publish(self, entry: Any, claimed: Claimed, **kwargs: Any) -> Any:
        own = entry.options
        # For this call only: entries outlive it, and no two ticks may share an id.
        options = {"task_id": claimed.tick.task_id(claimed.lease.key), **(own or {})}
        options.pop(IN_ENTRY, None)
        told = {PLANNED: self._due.planned.isoformat()} if self._due.planned else {}
        if self._options.of(entry).pause_on_failure:
            told[ENTRY] = entry.name
        if told:
            options["headers"] = {**options.get("headers", {}), **told}
        entry.options = options
        try:
            with ticking.on(), unmarked.on():
                return super().apply_async(entry, advance=False, **kwargs)
        finally:
            entry.options = own

    def _fail(self, entry: Any, claimed: Claimed) -> None:
        """Have a tick that was not sent come back: elsewhere at once, here after a rest."""
        give_back(claimed.lease)
        if self._closed:
            return  # and so is a schedule that is kept in a file
        rest = self._due.failed(entry)
        if self._heap is None:
            return
        self._moves[entry.name] = rest
        advanced = self.schedule.get(entry.name)
        if advanced is not None:
            take_back(advanced, entry)

    def reserve(self, entry: Any) -> Any:
        """Advance an entry, to the last run that all replicas will share."""
        claimed = self._due.claimed_of(entry)
        if claimed is not None:
            return self._advance(entry, claimed.tick)
        return super().reserve(entry)

    def _advance(self, entry: Any, tick: Tick) -> Any:
        advanced = super().reserve(entry)
        if in_utc(advanced.last_run_at) != tick.at:
            advanced.last_run_at = in_zone_of(entry, tick.at)
        return advanced
