"""``celery beat --scheduler singleflight``: as many replicas as you like, and each tick is sent once.

A mixin goes in front of the scheduler class that `singleflight_beat_scheduler` names. Every replica judges
its entries by the last run that all of them share, and claims what is due before it advances anything:

- `is_due` is what Celery's own loop asks; a tick that another replica has is simply not due here.
- `apply_entry` and `apply_async` claim for schedulers whose loop goes another way (redbeat).

What is used of Celery beyond its documented hooks is here and nowhere else: ``_heap`` (set to None it is
built anew) and ``_when``.
"""

from __future__ import annotations

import heapq
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from celery.beat import Scheduler
from celery.schedules import schedstate
from celery.utils.imports import load_extension_class_names, symbol_by_name

from singleflight.celery.runtime import Runtime
from singleflight.celery.ticks import (
    UNSENT,
    Claimed,
    Later,
    Sent,
    Ticks,
    give_back,
    in_utc,
    next_due,
    task_id,
    tick_id,
)
from singleflight.errors import ConfigurationError
from singleflight.events import logger
from singleflight.lease import Lease, Outcome, monotonic

if TYPE_CHECKING:
    from datetime import datetime

    from celery import Celery

WRAPPED = "celery.beat:Scheduler"
"""The scheduler class that is wrapped if `singleflight_beat_scheduler` names none."""

TTL = 5.0
"""Seconds that a replica which dies between claim and confirmation holds up one tick (`singleflight_beat_ttl`)."""

REMEMBER = 400 * 86400.0
"""Seconds for which the store knows an entry's last tick: longer than the longest interval in use, a year."""

LEARNING = 0.05
"""Seconds of each pass that may go into reading last ticks, so that 10,000 entries hold up no tick."""

LONGEST_REST = 60.0
"""Seconds: an entry whose publishing keeps failing is tried again after one, two, four ... at most these."""


def SingleflightScheduler(app: Celery, **options: Any) -> Any:  # noqa: N802 - Celery configures classes
    """Return a scheduler of the configured class that shares its ticks with all other replicas.

    Settings: `singleflight_beat_scheduler` (class, or alias such as ``django``; built in
    ``celery.beat:Scheduler``), `singleflight_beat_ttl` (seconds, built in 5), `singleflight_beat_catch_up`
    (True, built in: a tick missed in an outage is sent once, late; False: it is left out).

    Raises:
        ConfigurationError: if `singleflight.celery.install` was not called, or there is no store.
    """
    runtime: Runtime | None = getattr(app, "singleflight", None)
    if runtime is None:
        raise ConfigurationError(
            f"the app {app.main!r} has no leases: call singleflight.celery.install(app) where it is made"
        )
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    wrapped = symbol_by_name(app.conf.get("singleflight_beat_scheduler") or WRAPPED, aliases=aliases)
    if wrapped is SingleflightScheduler:
        raise ConfigurationError(
            "singleflight_beat_scheduler names the scheduler class that is wrapped, not singleflight itself; "
            "write 'celery.beat:Scheduler', or leave it out"
        )
    if runtime.enabled is not True:
        logger.warning("singleflight_enabled=%r: every beat replica sends every tick", runtime.enabled)
        return wrapped(app=app, **options)
    return _sharing(wrapped)(app=app, **options)


@cache
def _sharing(wrapped: type) -> type:
    name = f"Singleflight{wrapped.__name__}"
    return type(name, (SharedTicks, wrapped), {"__module__": __name__, "__doc__": SharedTicks.__doc__})


class SharedTicks(Scheduler):
    """What is put before a scheduler class; see the module."""

    def __init__(self, app: Celery, **options: Any) -> None:
        """Open the store's records of ticks, then the scheduler."""
        conf, runtime = app.conf, app.singleflight
        ttl = float(conf.get("singleflight_beat_ttl") or TTL)
        self._ticks = Ticks(_leases(runtime), runtime.prefix, ttl=ttl)
        catch_up = conf.get("singleflight_beat_catch_up")
        self._too_late = None if catch_up or catch_up is None else timedelta(seconds=2 * ttl)
        self._known: dict[str, Sent] = {}
        self._unlearned: list[Any] = []
        self._resting: dict[str, tuple[float, float]] = {}
        self._claimed: Claimed | None = None
        self._not_due: tuple[Any, Any] | None = None
        self._look_again: float | None = None
        super().__init__(app=app, **options)

    # The loop.

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Let the wrapped scheduler make one pass, and give back what it claimed and did not send."""
        self._learn()
        self._not_due = self._look_again = None
        try:
            delay = super().tick(*args, **kwargs)
        finally:
            self._drop_claim()
        delay = self._heap_again(delay)
        if self._look_again is not None:
            delay = min(delay, self._look_again)
        return min(delay, self._ticks.rests) if self._unlearned else delay

    def _heap_again(self, delay: float) -> float:
        # Celery before 5.7 leaves what is not due on top, where it holds up all others (celery#7649).
        heap = getattr(self, "_heap", None)
        if not heap or self._not_due is None or heap[0][2] is not self._not_due[0]:
            return delay
        entry, wait = self._not_due
        wait = self.max_interval if wait is None else min(wait, self.max_interval)
        heapq.heapreplace(heap, type(heap[0])(self._when(entry, wait), heap[0][1], entry))
        return delay if heap[0][2] is entry else 0

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Order the entries by the last runs that all replicas share; note those that are new here."""
        self._unlearned = []
        for entry in self.schedule.values():
            if entry.name in self._known:
                self._follow(entry)
            elif not entry.total_run_count:
                self._unlearned.append(entry)
        super().populate_heap(*args, **kwargs)

    def _learn(self) -> None:
        """Read the last ticks of entries that have never run here: what was due while no beat ran is due."""
        if not self._unlearned:
            return
        end = monotonic() + LEARNING
        while self._unlearned and monotonic() < end:
            entry = self._unlearned[-1]
            if entry.name not in self._known:
                last = self._ticks.last(entry.name, entry.schedule)
                if isinstance(last, Later):
                    return
                if last is not None:
                    self._known[entry.name] = last
                    entry.last_run_at = _local(last.at, entry)
                else:
                    self._base(entry)
            self._unlearned.pop()
        if not self._unlearned:
            self._heap = None

    # One entry.

    def is_due(self, entry: Any) -> Any:
        """Return whether an entry is due *and this replica's to send*, and when to ask again."""
        self._drop_claim()
        due, wait = self._judge(entry)
        if due:
            answer = self._claim(entry)
            if isinstance(answer, Claimed):
                self._claimed = answer
                at = _local(answer.sent.at, entry)
                again, wait = entry.schedule.is_due(at)
                return schedstate(True, 0 if again else wait)
            wait = answer.delay
        self._not_due = (entry, wait)
        return schedstate(False, wait)

    def reserve(self, entry: Any) -> Any:
        """Advance an entry, to the last run that all replicas see."""
        after = super().reserve(entry)
        if self._claimed is not None and self._claimed.entry == entry.name:
            after.last_run_at = _local(self._claimed.sent.at, entry)
        return after

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a tick that is this replica's; do nothing, and open no monitor, if it is another's."""
        if self._mine(entry):
            super().apply_entry(entry, producer=producer)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - Celery's signature
        """Publish a tick that is this replica's and confirm it; return None if it is another's."""
        if not self._mine(entry) or self._claimed is None:
            return None
        claimed, self._claimed = self._claimed, None
        try:
            if not claimed.lease.held:
                logger.warning("singleflight: %s was claimed too long ago to be sent", claimed.lease.run_id)
                self._fail(entry, claimed.lease)
                return None
            result = self._publish(entry, claimed.lease, producer=producer, **kwargs)
        except BaseException:
            self._fail(entry, claimed.lease)
            raise
        claimed.lease.release(Outcome.FINISHED)
        self._resting.pop(entry.name, None)
        self._known[entry.name] = claimed.sent
        if advance:
            self.reserve(entry)
        return result

    def _publish(self, entry: Any, lease: Lease, **kwargs: Any) -> Any:
        own = entry.options
        # Set for the call only: entries are stored, and no two ticks may share an id.
        entry.options = {"task_id": task_id(lease.key, lease.run_id), **(own or {})}
        try:
            return super().apply_async(entry, advance=False, **kwargs)
        finally:
            entry.options = own

    def _mine(self, entry: Any) -> bool:
        """Return whether the entry's tick is claimed, claiming it if the loop did not ask `is_due`."""
        if self._claimed is not None and self._claimed.entry == entry.name:
            return True
        due, delay = self._judge(entry)
        if due:
            answer = self._claim(entry)
            if isinstance(answer, Claimed):
                self._claimed = answer
                return True
            delay = answer.delay
        if delay is not None:
            self._look_again = min(delay, self._look_again or delay)
        return False

    def _judge(self, entry: Any) -> tuple[bool, Any]:
        """Ask the entry itself, by the last run that all replicas share."""
        self._base(entry)
        self._follow(entry)
        if entry.name in self._resting and (rest := self._resting[entry.name][0] - monotonic()) > 0:
            return False, rest
        due, wait = super().is_due(entry)
        if due and self._too_late is not None:
            oldest = entry.default_now() - self._too_late
            if self._due(entry) < in_utc(oldest):
                entry.last_run_at = oldest
                due, wait = super().is_due(entry)
        return due, wait

    def _claim(self, entry: Any) -> Claimed | Later:
        for _ in range(3):
            known = self._known[entry.name]
            due = self._due(entry)
            if tick_id(entry.name, due) == known.run_id:
                return Later(self.max_interval)  # a schedule of one instant, and that is behind us
            answer = self._ticks.claim(entry.name, entry.schedule, due, known.run_id)
            if not isinstance(answer, Sent):
                return answer
            self._known[entry.name] = answer
            is_due, wait = self._judge(entry)
            if not is_due:
                return Later(self.max_interval if wait is None else wait)
        return Later(0)

    def _due(self, entry: Any) -> datetime:
        return next_due(entry.schedule, _local(in_utc(entry.last_run_at), entry))

    def _base(self, entry: Any) -> None:
        """Begin with the entry's own last run, if nothing better is known."""
        if entry.name not in self._known:
            own = entry.last_run_at
            self._known[entry.name] = Sent("", UNSENT if own is None else in_utc(own))

    def _follow(self, entry: Any) -> None:
        """Have an entry go on from the last run that all replicas share."""
        known = self._known[entry.name].at
        if entry.last_run_at is None or in_utc(entry.last_run_at) < known:
            entry.last_run_at = _local(known, entry)

    def _fail(self, entry: Any, lease: Lease) -> None:
        """Have a tick that was not sent come back, here after a rest, elsewhere at once."""
        give_back(lease)
        _, rest = self._resting.get(entry.name, (0.0, 0.5))
        rest = min(2 * rest, LONGEST_REST)
        self._resting[entry.name] = (monotonic() + rest, rest)
        if getattr(self, "_heap", None) is not None:
            # The loop has advanced the entry already.
            self.schedule[entry.name].last_run_at = entry.last_run_at
            self._heap = None

    def _drop_claim(self) -> None:
        if self._claimed is not None:
            claimed, self._claimed = self._claimed, None
            give_back(claimed.lease)


def _leases(runtime: Runtime) -> Any:
    given = {**runtime._given, "remember": REMEMBER}
    return Runtime(runtime.app, runtime._store, given).leases


def _local(moment: datetime, entry: Any) -> datetime:
    """Return a moment in the zone that the entry's schedule counts in; Celery compares wall clocks."""
    zone = entry.default_now().tzinfo
    return moment.astimezone(zone) if zone is not None else moment.replace(tzinfo=None)
