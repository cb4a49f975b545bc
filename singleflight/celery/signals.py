"""Celery signals for what singleflight decides, sent in the process where it happens.

    from singleflight.celery.signals import singleflight_skipped

    @singleflight_skipped.connect
    def count(sender, event, **_): ...

Each is a `celery.utils.dispatch.Signal`. Its sender is the task (the lease's name, if that is no registered
task), and ``event`` is the `singleflight.Event`: key, run, reason, who holds the key and since when. Leases
are renewed by a thread, so what happens to one while its body runs is told from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.dispatch import Signal

from singleflight.events import Kind

if TYPE_CHECKING:
    from celery import Celery

    from singleflight.events import Event, Listener

__all__ = [
    "singleflight_deferred",
    "singleflight_dropped",
    "singleflight_lost",
    "singleflight_refused",
    "singleflight_skipped",
    "singleflight_store_error",
    "singleflight_took_over",
]

singleflight_skipped = Signal(name="singleflight_skipped", providing_args={"event"})
"""A run was skipped as a duplicate, at once or because ``give_up_after`` had passed."""
singleflight_deferred = Signal(name="singleflight_deferred", providing_args={"event"})
"""A run will come back in ``event.delay`` seconds."""
singleflight_refused = Signal(name="singleflight_refused", providing_args={"event"})
"""A publisher or a run got a `Conflict`."""
singleflight_dropped = Signal(name="singleflight_dropped", providing_args={"event"})
"""A late copy of a run that has ended was acknowledged and nothing else."""
singleflight_took_over = Signal(name="singleflight_took_over", providing_args={"event"})
"""A run was granted the key of a holder that had died."""
singleflight_lost = Signal(name="singleflight_lost", providing_args={"event"})
"""A run may not trust its lease any more."""
singleflight_store_error = Signal(name="singleflight_store_error", providing_args={"event"})
"""The store did not answer; never counted as a conflict."""

SIGNALS = {
    Kind.SKIPPED: singleflight_skipped,
    Kind.GAVE_UP: singleflight_skipped,
    Kind.DEFERRED: singleflight_deferred,
    Kind.REFUSED: singleflight_refused,
    Kind.DROPPED: singleflight_dropped,
    Kind.TOOK_OVER: singleflight_took_over,
    Kind.LOST: singleflight_lost,
    Kind.STORE_ERROR: singleflight_store_error,
}
"""What else happens is told to listeners only: grants and releases are Celery's own task signals."""


def sending(app: Celery) -> Listener:
    """Return the listener that turns an app's events into signals."""

    def send(event: Event) -> None:
        signal = SIGNALS.get(event.kind)
        if signal is not None and signal.receivers:
            signal.send(sender=app.tasks.get(event.task, event.task), event=event)

    send.singleflight_kinds = frozenset(SIGNALS)  # type: ignore[attr-defined]  # of others no event need be made
    return send
