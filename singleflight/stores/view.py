"""What a record says, in words of those who look at it; pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from singleflight.identity import message_id_of
from singleflight.lease import Holder, Outcome
from singleflight.status import Status

if TYPE_CHECKING:
    from singleflight.stores.base import Look


def status_of(key: str, look: Look | None) -> Status:
    """Return what a look at a key has shown; None is a key of which the store knows nothing."""
    if look is None:
        return Status(key=key)
    record, now_ms = look.record, look.now_ms
    running = record.held and record.expires_ms > now_ms
    outcome: Outcome | None = None
    if not record.held:
        with suppress(ValueError):  # none yet, or one of a version to come
            outcome = Outcome(record.outcome)
    return Status(
        key=key,
        running=running,
        run_id=message_id_of(record.run_id),
        holder=Holder.decode(record.holder),
        since=record.started_ms / 1000 if record.started_ms else None,
        age=max(0, now_ms - record.started_ms) / 1000 if record.started_ms else None,
        expires_in=(record.expires_ms - now_ms) / 1000 if running else 0.0,
        opens_in=max(0, record.opens_ms - now_ms) / 1000,
        waiting=message_id_of(record.slot) if record.slot_expires_ms > now_ms else "",
        outcome=outcome,
        fence=record.fence,
    )
