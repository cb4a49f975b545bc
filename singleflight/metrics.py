"""Counters and durations of what happens to leases, for Prometheus and OpenTelemetry.

    install(app, listeners=[singleflight.metrics.prometheus()])

================================= ========= ==============================================
``singleflight_events``           counter   by ``event`` (a `Kind`), ``task`` and ``reason``
``singleflight_hold_seconds``     histogram by ``task``: from grant to release
``singleflight_deferral_seconds`` histogram by ``task``: how long a deferred run stays away
``singleflight_held_since_seconds`` gauge   by ``task``: since when the process holds its oldest lease
================================= ========= ==============================================

The gauge is in epoch seconds, and 0 while none is held: ``time() - (singleflight_held_since_seconds > 0)``
shows a body that hangs, however often its lease is renewed.

Labels never carry arguments. ``reason`` is a `Reason` or an `Outcome`, else empty. A store that is away is
``event="store_error"`` and never a conflict. ``granted`` and ``took_over`` together are all grants.
"""

from __future__ import annotations

import os
import time
from threading import Lock
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from singleflight.errors import NotInstalled
from singleflight.events import Kind
from singleflight.lease import Outcome, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Meter
    from prometheus_client import CollectorRegistry

    from singleflight.events import Event, Listener

EVENTS, HOLD, DEFERRAL = "singleflight_events", "singleflight_hold_seconds", "singleflight_deferral_seconds"
HELD = "singleflight_held_since_seconds"
HELP = {
    EVENTS: "What happened to leases",
    HOLD: "Seconds from the grant of a lease to its release",
    DEFERRAL: "Seconds for which a deferred run stays away",
    HELD: "Epoch seconds since which this process holds the oldest of its leases, 0 if it holds none",
}
BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
"""Seconds: tasks take milliseconds or hours."""

REASONS = frozenset([*map(str, Reason), *map(str, Outcome)])


class _Meters(Protocol):
    @property
    def held(self) -> _Held: ...
    def count(self, event: str, task: str, reason: str) -> None: ...
    def observe(self, name: str, task: str, seconds: float) -> None: ...
    def held_since(self, task: str, moment: float) -> None: ...


def prometheus(registry: CollectorRegistry | None = None) -> Listener:
    """Return a listener that counts with ``prometheus_client``; called again, it counts in the same metrics.

    In a prefork pool set ``PROMETHEUS_MULTIPROC_DIR`` for the worker and serve a registry with a
    `MultiProcessCollector`, as ``prometheus_client`` says: all processes are then counted as one. Its
    ``mark_process_dead``, called for each process that ends, takes away what that one held.

    Args:
        registry: where the metrics are registered; built in, the client's own. A pool process that is not
            forked has no other.
    """
    return _Counting(_prometheus_meters(registry), prometheus if registry is None else None)


def opentelemetry(meter: Meter | None = None) -> Listener:
    """Return a listener that counts with OpenTelemetry.

    Args:
        meter: what makes the instruments; built in, the global provider's meter ``singleflight``. A pool
            process that is not forked has no other.
    """
    return _Counting(_OpenTelemetry(meter), opentelemetry if meter is None else None)


class _Counting:
    """A listener that counts; pickled for another process, it counts in that one's own registry or meter."""

    def __init__(self, meters: _Meters, anew: Callable[[], Listener] | None) -> None:
        self._meters, self._anew = meters, anew

    def __call__(self, event: Event) -> None:
        if event.kind in (Kind.GRANTED, Kind.TOOK_OVER, Kind.RELEASED):
            self._meters.held_since(event.task, self._meters.held.note(event))
        self._meters.count(str(event.kind), event.task, _label(event.reason))
        if event.kind is Kind.RELEASED and event.age is not None:
            self._meters.observe(HOLD, event.task, event.age)
        if event.kind is Kind.DEFERRED and event.delay is not None:
            self._meters.observe(DEFERRAL, event.task, event.delay)

    def __reduce__(self) -> tuple[Callable[[], Listener], tuple[()]]:
        if self._anew is None:
            raise TypeError("it counts in a registry or a meter that only this process has")
        return self._anew, ()


class _Held:
    """Since when this process holds the leases of each task."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._since: dict[str, dict[str, float]] = {}
        self._pid = os.getpid()

    def note(self, event: Event) -> float:
        """Note a grant or a release; return since when its task's oldest lease is held, 0.0 if none is."""
        with self._lock:
            if self._pid != os.getpid():  # a fork: what the parent holds is not ours
                self._since, self._pid = {}, os.getpid()
            of_task = self._since.setdefault(event.task, {})
            if event.kind is Kind.RELEASED:
                of_task.pop(event.token, None)
            else:
                of_task[event.token] = time.time()
            return min(of_task.values(), default=0.0)


def _label(reason: str) -> str:
    """Return a reason if it is one of few; a sentence names a key, and would be a label of its own."""
    last = reason.rpartition(": ")[2]
    return last if last in REASONS else ""


_known: WeakKeyDictionary[CollectorRegistry, _Meters] = WeakKeyDictionary()
"""By registry: it takes each name once, but a module may be imported where its listener has been sent to."""


def _prometheus_meters(registry: CollectorRegistry | None) -> _Meters:
    try:
        import prometheus_client  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise NotInstalled.of("prometheus_client", "prometheus") from error
    where = prometheus_client.REGISTRY if registry is None else registry
    if where not in _known:
        _known[where] = _Prometheus(where)
    return _known[where]


class _Prometheus:
    def __init__(self, where: CollectorRegistry) -> None:
        import prometheus_client  # noqa: PLC0415 - an extra

        self._events = prometheus_client.Counter(
            EVENTS, HELP[EVENTS], ("event", "task", "reason"), registry=where
        )
        self._durations = {
            name: prometheus_client.Histogram(name, HELP[name], ("task",), buckets=BUCKETS, registry=where)
            for name in (HOLD, DEFERRAL)
        }
        self.held = _Held()
        self._held_since = prometheus_client.Gauge(
            HELD, HELP[HELD], ("task",), registry=where, multiprocess_mode="liveall"
        )

    def count(self, event: str, task: str, reason: str) -> None:
        self._events.labels(event, task, reason).inc()

    def observe(self, name: str, task: str, seconds: float) -> None:
        self._durations[name].labels(task).observe(seconds)

    def held_since(self, task: str, moment: float) -> None:
        self._held_since.labels(task).set(moment)


def _global_meter() -> Meter:
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise NotInstalled.of("opentelemetry", "opentelemetry") from error
    return metrics.get_meter("singleflight")


class _OpenTelemetry:
    def __init__(self, meter: Meter | None) -> None:
        made = _global_meter() if meter is None else meter
        self._events = made.create_counter(EVENTS, description=HELP[EVENTS])
        self._durations = {
            name: made.create_histogram(
                name, unit="s", description=HELP[name], explicit_bucket_boundaries_advisory=BUCKETS
            )
            for name in (HOLD, DEFERRAL)
        }
        self.held = _Held()
        self._held_since = made.create_gauge(HELD, unit="s", description=HELP[HELD])

    def count(self, event: str, task: str, reason: str) -> None:
        self._events.add(1, {"event": event, "task": task, "reason": reason})

    def observe(self, name: str, task: str, seconds: float) -> None:
        self._durations[name].record(seconds, {"task": task})

    def held_since(self, task: str, moment: float) -> None:
        self._held_since.set(moment, {"task": task})
