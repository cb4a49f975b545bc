"""What makes a beat scheduler share its ticks with other replicas: a mixin that goes before its class.

Every replica judges its entries by the last run that all of them share, and claims a tick before anything is
advanced or announced:

- in `is_due`, which Celery's own loop asks: a tick that is another replica's is not due here;
- in `apply_entry`, `apply_async` or redbeat's `maybe_due`, for schedulers whose loop does not ask it.

Of Celery's private parts it uses two: ``_heap`` (None makes the loop build it anew) and ``_when``.
"""

from __future__ import annotations

import heapq
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery.beat import Scheduler
from celery.schedules import schedstate

from singleflight.celery.publish import ticking
from singleflight.celery.schedule_times import in_utc, in_zone_of, next_due, task_id, tick_id
from singleflight.celery.ticks import UNSENT, Claimed, Later, Sent, Ticks, give_back
from singleflight.errors import Conflict
from singleflight.events import logger
from singleflight.lease import monotonic
from singleflight.policy import Singleton, resolve

if TYPE_CHECKING:
    from celery import Celery

    from singleflight.celery.runtime import Runtime
    from singleflight.lease import Lease

TTL = 5.0
"""Seconds for which a replica that dies between claim and confirmation holds up one tick."""

REMEMBER = 400 * 86400.0
"""Seconds for which the store knows an entry's last tick: a year, the longest usual interval, and more."""

LEARNING = 0.2
"""Seconds of each pass that go into reading last ticks, so that 10,000 entries hold up no tick for long."""

LONGEST_REST = 60.0
"""Seconds: an entry whose publishing fails is tried again after 1, 2, 4 ... at most these."""


class SharedTicks(Scheduler):
    """What goes before the wrapped scheduler class; see the module."""

    _heap: list[Any] | None

    def __init__(self, app: Celery, **options: Any) -> None:
        runtime: Runtime = app.singleflight
        ttl = resolve(Singleton(ttl=runtime.setting("beat_ttl", TTL))).ttl  # refuses a wrong value by name
        leases = runtime.open_leases(remember=REMEMBER)
        self._ticks = Ticks(leases, runtime.prefix, ttl=ttl)
        self._latest = None if runtime.setting("beat_catch_up", True) else timedelta(seconds=2 * ttl)
        self._known: dict[str, Sent] = {}
        self._learned: set[str] = set()
        self._unlearned: list[Any] = []
        self._failing: dict[str, tuple[float, float]] = {}
        self._claimed: Claimed | None = None
        self._refused: tuple[Any, float] | None = None
        self._closed = False
        super().__init__(app=app, **options)

    # The loop

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Let the wrapped scheduler make one pass; give back what it claimed and did not send.

        Raises:
            SystemExit: if beat was told to stop. Celery raises it in a signal handler, and one that strikes
                while a driver reads is swallowed by that driver's clean-up.
        """
        if self._closed:
            raise SystemExit
        self._learn()
        try:
            delay: float = super().tick(*args, **kwargs)
        finally:
            self._drop()
        refused, self._refused = self._refused, None
        if refused is not None:
            delay = min(delay, self._heap_again(*refused))
        return min(delay, self._ticks.rests) if self._unlearned else delay

    def close(self) -> None:
        """Note that this is the end: Celery's signal handler closes the scheduler before all else."""
        self._closed = True
        super().close()

    def _heap_again(self, entry: Any, wait: float) -> float:
        """Put an entry that is not due where it belongs; return when the loop should come back."""
        heap = self._heap
        if heap and heap[0][2] is entry:
            # Celery before 5.7 leaves it on top, where it holds up all others (celery#7649).
            _, priority, _ = heap[0]
            heapq.heapreplace(heap, type(heap[0])(self._when(entry, wait), priority, entry))
            return wait if heap[0][2] is entry else 0
        return wait if heap is None else self.max_interval

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Order the entries by their shared last runs; note those whose last run is not known."""
        self._unlearned = []
        for entry in self.schedule.values():
            if entry.name in self._known:
                self._follow(entry)
            if entry.name not in self._learned and not entry.total_run_count:
                self._unlearned.append(entry)
        super().populate_heap(*args, **kwargs)

    def _learn(self) -> None:
        """Read the last ticks of entries that never ran here, so that what no beat sent is due."""
        if not self._unlearned:
            return
        end = monotonic() + LEARNING
        while self._unlearned and monotonic() < end:
            entry = self._unlearned[-1]
            last = self._ticks.last(entry)
            if isinstance(last, Later):
                return
            if last is not None and not self._follow(entry).run_id:
                self._known[entry.name] = last
                entry.last_run_at = in_zone_of(entry, last.at)
            self._learned.add(self._unlearned.pop().name)
        if not self._unlearned:
            self._heap = None

    # One entry

    def is_due(self, entry: Any) -> Any:
        """Return whether an entry is due and this replica's to send, and the seconds until asked again."""
        self._drop()
        answer = self._take(entry)
        if isinstance(answer, Later):
            return schedstate(False, answer.delay)
        again, wait = entry.schedule.is_due(in_zone_of(entry, answer.sent.at))
        return schedstate(True, 0 if again else wait)

    def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
        """Do what redbeat does with an entry, if its tick is this replica's."""
        answer = self._take(entry)
        return answer.delay if isinstance(answer, Later) else super().maybe_due(entry, **kwargs)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a tick, if it is this replica's."""
        if isinstance(self._take(entry), Claimed):
            super().apply_entry(entry, producer=producer)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - Celery's
        """Publish a tick and confirm it, if it is this replica's; else return None."""
        claimed = self._take(entry)
        if isinstance(claimed, Later):
            return None
        self._claimed = None
        try:
            if not claimed.lease.held:
                logger.warning("singleflight: %s: claimed too long ago to be sent now", claimed.lease.run_id)
                self._fail(entry, claimed.lease)
                return None
            result = self._publish(entry, claimed.lease, producer=producer, **kwargs)
        except BaseException as error:
            # Celery wraps what publishing raised; a task that was told to refuse duplicates has had its tick.
            if isinstance(error.__context__, Conflict):
                self._confirm(entry, claimed)
            else:
                self._fail(entry, claimed.lease)
            raise
        self._confirm(entry, claimed)
        # Only now: should we die before, an entry in a database is still due for the others.
        if advance and not self._closed:
            self.reserve(entry)
        return result

    def _publish(self, entry: Any, lease: Lease, **kwargs: Any) -> Any:
        own = entry.options
        # For this call only: entries outlive it, and no two ticks may share an id.
        entry.options = {"task_id": task_id(lease.key, lease.run_id), **(own or {})}
        try:
            with ticking():
                return super().apply_async(entry, advance=False, **kwargs)
        finally:
            entry.options = own

    def _confirm(self, entry: Any, claimed: Claimed) -> None:
        self._ticks.confirm(claimed)
        self._failing.pop(entry.name, None)
        self._known[entry.name] = claimed.sent

    def _fail(self, entry: Any, lease: Lease) -> None:
        """Have a tick that was not sent come back: elsewhere at once, here after a rest."""
        give_back(lease)
        if self._closed:
            return  # and so is a schedule that is kept in a file
        _, rest = self._failing.get(entry.name, (0.0, 0.5))
        rest = min(2 * rest, LONGEST_REST)
        self._failing[entry.name] = monotonic() + rest, rest
        advanced = None if self._heap is None else self.schedule.get(entry.name)
        if advanced is not None:  # by Celery's loop, before publishing
            advanced.last_run_at, self._heap = entry.last_run_at, None

    def reserve(self, entry: Any) -> Any:
        """Advance an entry, to the last run that all replicas will share."""
        advanced = super().reserve(entry)
        if self._claimed is not None and self._claimed.entry == entry.name:
            advanced.last_run_at = in_zone_of(entry, self._claimed.sent.at)
        return advanced

    # What is due here

    def _take(self, entry: Any) -> Claimed | Later:
        """Return the claim on an entry's tick, claiming it now if it is due and nobody has asked before."""
        if self._claimed is not None and self._claimed.entry == entry.name:
            return self._claimed
        answer = self._claim(entry)
        if isinstance(answer, Later):
            self._refused = entry, answer.delay
        else:
            self._drop()
            self._claimed = answer
        return answer

    def _claim(self, entry: Any) -> Claimed | Later:
        while (wait := self._judge(entry)) is None:
            known = self._follow(entry)
            if tick_id(entry.name, next_due(entry)) == known.run_id:
                return Later(self.max_interval)  # a schedule of one instant, and that has been sent
            answer = self._ticks.claim(entry, known.run_id)
            if not isinstance(answer, Sent):
                return answer
            if answer == known:
                return Later(self.max_interval)
            self._known[entry.name] = answer
            _note_one_off(entry)
        return Later(wait)

    def _judge(self, entry: Any) -> float | None:
        """Ask an entry by the shared last run: None if it is due, else the seconds until asked again."""
        self._follow(entry)
        if (rest := self._failing.get(entry.name, (0.0, 0.0))[0] - monotonic()) > 0:
            return rest
        due, wait = super().is_due(entry)
        if due and self._latest is not None:
            oldest = entry.default_now() - self._latest
            if next_due(entry) < in_utc(oldest):
                entry.last_run_at = oldest
                due, wait = super().is_due(entry)
        if due:
            return None
        return float(self.max_interval if wait is None else wait)

    def _follow(self, entry: Any) -> Sent:
        """Have an entry go on from the shared last run; its own is the first if no other is known."""
        own = UNSENT if entry.last_run_at is None else in_utc(entry.last_run_at)
        known = self._known.setdefault(entry.name, Sent("", own))
        if entry.last_run_at is None or own < known.at:
            entry.last_run_at = in_zone_of(entry, known.at)
        return known

    def _drop(self) -> None:
        """Give back a claim that the loop did not use."""
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            give_back(claimed.lease)


def _note_one_off(entry: Any) -> None:
    """Note that another replica has sent an entry that django-celery-beat is to send once.

    It counts the sent ticks of each process for itself, and disables the entry when that is more than none.
    """
    model: Any = getattr(entry, "model", None)
    if getattr(model, "one_off", False):
        model.total_run_count = max(1, model.total_run_count)
