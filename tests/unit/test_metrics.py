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


def by_prometheus(events: list[Event]) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
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


def by_opentelemetry(events: list[Event]) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """Return the same, as OpenTelemetry's reader sees it."""
    needed("opentelemetry", "opentelemetry-sdk")
    from opentelemetry.sdk import metrics as sdk
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from singleflight.metrics import opentelemetry

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    listen = opentelemetry(provider.get_meter("test"))
    for event in events:
        listen(event)
    counts, sums = {}, {}
    data = reader.get_metrics_data()
    provider.shutdown()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert point.attributes["task"] == "shop.nightly"
            if metric.name == "singleflight_events":
                counts[point.attributes["event"], point.attributes["reason"]] = point.value
            else:
                sums[metric.name] = point.sum
    return counts, sums


@pytest.mark.parametrize("told", [by_prometheus, by_opentelemetry])
def test_every_event_is_counted_by_kind_and_reason(
    told: Callable[[list[Event]], tuple[dict[tuple[str, str], float], dict[str, float]]],
) -> None:
    """An outage is no conflict, a sentence no label, and durations are summed."""
    counts, sums = told(EVENTS)

    assert counts == COUNTED
    assert sums == {"singleflight_hold_seconds": 2.0, "singleflight_deferral_seconds": 3.0}
