"""Options of Celery's Redis transport with which messages of killed workers soon come back."""

from __future__ import annotations

SWEEP = {
    # How often a worker looks for them; built in is once in 100 s.
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    # One that is killed while it looks keeps others from looking; built in is for five minutes.
    "unacked_mutex_expire": 2,
}
