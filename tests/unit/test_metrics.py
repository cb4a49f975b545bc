"""What Prometheus and OpenTelemetry are told, and what never becomes a label."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight import Event, Kind
from tests.support.wrapper import needed

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS = [
    Event(kind=Kind.GRANTED, task="shop.nightly", key="k", run_id="1"),
    Event(kind=Kind.SKIPPED, task="shop.nightly", key="k", run_id="2", reason="running"),
    Event(kind=Kind.SKIPPED, task="shop.nightly", key="k", run_id="3", reason="not sent: queued"),
    Event(kind=Kind.DEFERRED, task="shop.nightly", key="k", run_id="4", reason="window", delay=3.0),
    Event(kind=Kind.RELEASED, task="shop.nightly", key="k", run_id="1", reason="finished", age=2.0),
    Event(
        kind=Kind.STORE_ERROR,
        task="shop.nightly",
        key="k",
        run_id="5",
        reason="store h:1/0 gave no answer: boo",
    ),
]
COUNTED = {
    ("granted", ""): 1,
    ("skipped", "running"): 1,
    ("skipped", "queued"): 1,
    ("deferred", "window"): 1,
    ("released", "finished"): 1,
    ("store_error", ""): 1,
}


def by_prometheus(events: list[Event]) -> tuple[dict[tuple[str, ...], float], dict[str, float]]:
    """Return counters, and sums of durations."""
    needed("prometheus_client", "prometheus-client")
    import prometheus_client

    from singleflight.metrics import prometheus

    registry = prometheus_client.CollectorRegistry()
    listen = prometheus(registry)
    for event in events:
        listen(event)
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert {sample.labels["task"] for sample in samples} == {"shop.nightly"}
    return (
        {
            (s.labels["event"], s.labels["reason"]): s.value
            for s in samples
            if s.name.endswith("events_total")
        },
        {s.name.removesuffix("_sum"): s.value for s in samples if s.name.endswith("_sum")},
    )


class Instrument:
    """Adds up what it is given, as OpenTelemetry's counters and histograms take it."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, ...], float] = {}

    def set(self, amount: float, attributes: dict[str, str]) -> None:
        """Take the place of what had these attributes."""
        self.totals[tuple(attributes.values())] = amount

    def add(self, amount: float, attributes: dict[str, str]) -> None:
        """Add to what has these attributes."""
        assert attributes.pop("task") == "shop.nightly"
        key = tuple(attributes.values())
        self.totals[key] = self.totals.get(key, 0) + amount

    record = add


class Meter:
    """Makes instruments, as OpenTelemetry's meters do; where its SDK is installed, redis-py starts slowly."""

    def __init__(self) -> None:
        self.made: dict[str, Instrument] = {}

    def create_counter(self, name: str, **_: object) -> Instrument:
        """Make a counter."""
        return self.made.setdefault(name, Instrument())

    create_histogram = create_gauge = create_counter


def by_opentelemetry(events: list[Event]) -> tuple[dict[tuple[str, ...], float], dict[str, float]]:
    """Return the same, as a meter of OpenTelemetry sees it."""
    from singleflight.metrics import EVENTS as NAME
    from singleflight.metrics import HELD, opentelemetry

    meter = Meter()
    listen = opentelemetry(meter)
    for event in events:
        listen(event)
    counts = meter.made.pop(NAME).totals
    assert meter.made.pop(HELD).totals == {("shop.nightly",): 0.0}
    return counts, {name: sum(made.totals.values()) for name, made in meter.made.items()}


@pytest.mark.parametrize("told", [by_prometheus, by_opentelemetry])
def test_every_event_is_counted_by_kind_and_reason(
    told: Callable[[list[Event]], tuple[dict[tuple[str, ...], float], dict[str, float]]],
) -> None:
    """An outage is no conflict, a sentence no label, and durations are summed."""
    counts, sums = told(EVENTS)

    assert counts == COUNTED
    assert sums == {"singleflight_hold_seconds": 2.0, "singleflight_deferral_seconds": 3.0}


def held_by(task: str, kind: Kind, token: str) -> Event:
    """Return what a grant or a release of one delivery tells."""
    return Event(kind=kind, task=task, key="k", run_id=token, token=token, age=1.0)


def test_a_gauge_shows_since_when_the_oldest_lease_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that hangs keeps its moment, whatever else of its task comes and goes; then the gauge is 0."""
    needed("prometheus_client", "prometheus-client")
    import prometheus_client

    from singleflight import metrics

    registry = prometheus_client.CollectorRegistry()
    listen = metrics.prometheus(registry)
    now = 1000.0
    monkeypatch.setattr(metrics.time, "time", lambda: now)
    seen = []

    def tell(task: str, kind: Kind, token: str) -> None:
        listen(held_by(task, kind, token))
        seen.append([registry.get_sample_value(metrics.HELD, {"task": name}) for name in ("render", "mail")])

    tell("render", Kind.GRANTED, "hangs")
    now = 1005.0
    tell("render", Kind.TOOK_OVER, "quick")
    tell("mail", Kind.GRANTED, "other")
    now = 1010.0
    tell("render", Kind.RELEASED, "quick")
    tell("mail", Kind.RELEASED, "other")
    listen(held_by("render", Kind.DEFERRED, "third"))
    tell("render", Kind.RELEASED, "hangs")

    assert seen == [[1000, None], [1000, None], [1000, 1005], [1000, 1005], [1000, 0], [0, 0]]


def test_a_fork_holds_none_of_its_parents_leases() -> None:
    """The gauge of a child process starts with its own first lease."""
    from singleflight import metrics

    held = metrics._Held()
    held.note(held_by("render", Kind.GRANTED, "parents"))
    held._pid += 1

    assert held.note(held_by("render", Kind.RELEASED, "another")) == 0.0
