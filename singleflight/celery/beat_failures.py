"""Entries that are paused when a run of theirs fails: the option ``pause_on_failure``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singleflight.celery import beat_pauses
from singleflight.celery.beat_options import BeatOptions
from singleflight.celery.schedule_times import tick_of
from singleflight.celery.ticks import tick_key
from singleflight.errors import ConfigurationError, SingleflightError
from singleflight.lease import Holder
from singleflight.log import logger
from singleflight.stores.view import View

if TYPE_CHECKING:
    from singleflight.celery.runtime import Runtime
    from singleflight.stores.base import Store

ENTRY = "singleflight_entry"
"""The header with the entry that a message was sent for, if that is paused when a run fails."""


def pause_entry_of(task: Any, task_id: str, error: BaseException) -> None:
    """Pause the entry that a run was sent for, if it asks for that; a run that is retried has not failed."""
    runtime: Runtime | None = getattr(task.app, "singleflight", None)
    if runtime is None or runtime.enabled is not True:
        return
    asking = BeatOptions(runtime).pausing
    if not asking:
        return
    try:
        leases = runtime.open_leases()
        name = _entry_of(runtime, leases.store, task, task_id, asking)
        if name is None:
            return
        here, why = Holder.here("").host, f"run {task_id} failed with {type(error).__name__}"
        paused = beat_pauses.pause(
            leases.store,
            tick_key(runtime.prefix, name),
            name,
            task.app.now(),
            owner=here,
            note=why,
            seconds=None,
        )
        logger.warning("singleflight: %s is %s", name, paused)
    except ConfigurationError as said:
        logger.info("singleflight: %s", said)  # somebody was faster
    except SingleflightError as failed:
        logger.warning("singleflight: the entry of run %s could not be paused: %s", task_id, failed)


def _entry_of(runtime: Runtime, store: Store, task: Any, task_id: str, asking: set[str]) -> str | None:
    if task.request.id == task_id:
        name = (task.request.headers or {}).get(ENTRY)
        # A message may come from anybody: it pauses no entry that does not ask for it.
        return name if name in asking else None
    # After a hard time limit Celery does not tell the message; the last tick of an entry is known by its id.
    for name in asking:
        key = tick_key(runtime.prefix, name)
        tick = tick_of(name, View(store.peek(key)).run_id)
        if tick is not None and tick.task_id(key) == task_id:
            return name
    return None
