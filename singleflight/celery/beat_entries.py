"""What differs between the entries of Celery's own schedulers and others', such as django-celery-beat's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.beat import ScheduleEntry

from singleflight.celery.schedule_times import in_utc

if TYPE_CHECKING:
    from singleflight.celery.schedule_times import Last


def counts_from_start(entry: Any) -> bool:
    """Return whether an entry's last run is only the moment at which this process made it."""
    # Entries that are kept in a database have a constructor of their own, which reads their last run.
    return not entry.total_run_count and type(entry).__init__ is ScheduleEntry.__init__


def take_back(advanced: Any, entry: Any) -> None:
    """Undo what Celery's loop did to an entry before its message, which could not be published."""
    advanced.last_run_at, advanced.total_run_count = entry.last_run_at, entry.total_run_count
    if (model := getattr(advanced, "model", None)) is not None:
        model.last_run_at, model.total_run_count = entry.last_run_at, entry.total_run_count


def note_one_off(entry: Any, last: Last) -> None:
    """Note that another replica has sent an entry that django-celery-beat is to send once.

    It counts the sent ticks of each process for itself, and disables the entry when that is more than none.
    What was sent before the entry was changed does not count: it may have been enabled again.
    """
    model: Any = getattr(entry, "model", None)
    if not getattr(model, "one_off", False) or last.ours or not last.sent or last.at is None:
        return
    changed = getattr(model, "date_changed", None)
    if changed is None or last.at >= in_utc(changed):
        model.total_run_count = max(1, model.total_run_count)
