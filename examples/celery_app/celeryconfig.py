"""Celery's configuration; every line would stand in your app as it stands here."""

import os

broker_url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
result_backend = broker_url
broker_connection_retry_on_startup = True

# A worker that dies gives its message back, so the run is done again; singleflight makes that safe.
task_acks_late = True
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1

# Options of every singleton task that says nothing else: 10 s is the longest a dead worker can block.
singleflight_defaults = {"ttl": 10}

beat_schedule = {
    "nightly-report": {
        "task": "tasks.nightly_report",
        # In earnest crontab(hour=2, minute=30); every five seconds, so that there is something to see.
        "schedule": 5.0,
    },
}
