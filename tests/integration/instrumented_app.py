"""The app of the worker tests under Sentry's and OpenTelemetry's Celery instrumentation, in either order.

What they would send goes to a file each: Sentry's envelopes through a transport of our own, OpenTelemetry's
spans through an exporter.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sentry_sdk
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from sentry_sdk.envelope import Envelope

FOLDER = Path(os.environ["APP_FOLDER"])
ORDER = "INSTRUMENT"
"""`before` or `after`: when the instrumentation comes, seen from `singleflight.celery.install`."""


def write(name: str, facts: dict[str, Any]) -> None:
    """Append one line to a file."""
    with (FOLDER / name).open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts, default=str) + "\n")


class File(Transport):
    """Writes down what Sentry would be sent."""

    def capture_envelope(self, envelope: Envelope) -> None:
        """Write the envelope's items."""
        for item in envelope.items:
            if item.type in ("event", "transaction", "check_in"):
                write("sentry.log", {"type": item.type, **(item.payload.json or {})})


class Spans(SpanExporter):
    """Writes down each span that ends."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans."""
        for span in spans:
            events = [event.name for event in span.events]
            facts = {"name": span.name, "status": span.status.status_code.name, "events": events}
            write("spans.log", {**facts, "run": (span.attributes or {}).get("messaging.message.id")})
        return SpanExportResult.SUCCESS


def instrument() -> None:
    """Switch both on, as their documentation says."""
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=File,
        traces_sample_rate=1.0,
        default_integrations=False,
        integrations=[CeleryIntegration(monitor_beat_tasks=True)],
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Spans()))
    CeleryInstrumentor().instrument(tracer_provider=provider)


if os.environ[ORDER] == "before":
    instrument()

from singleflight import Singleton  # noqa: E402 - the order is what is tested
from tests.integration import publish_app  # noqa: E402 - the order is what is tested

if os.environ[ORDER] == "after":
    instrument()

app = publish_app.app
# Sentry watches no interval of less than a minute, so this one has been due for an hour.
app.conf.beat_schedule = {
    task: {
        "task": task,
        "schedule": 60.0,
        "args": ["tick"],
        "options": options,
        "last_run_at": datetime.now(UTC) - timedelta(hours=1),
    }
    for task, options in (("plain", {}), ("probe", {"singleton": Singleton(on_conflict="defer")}))
}
