"""What a worker includes (``-I``) so that its pool processes are started as its environment says."""

from __future__ import annotations

import os

import billiard
from celery import current_app
from celery.concurrency import asynpool

from tests.support.starting import METHOD

billiard.set_start_method(os.environ[METHOD], force=True)
current_app.conf.worker_proc_alive_timeout = 60  # Celery's four are few for a new interpreter

if os.environ[METHOD] == "forkserver":
    # A child of the fork server calls its pipe by another number than the main process does, and Celery's
    # fair scheduling then takes it for busy for ever after its first task. No option turns that off.
    asynpool.SCHED_STRATEGIES.update(dict.fromkeys(asynpool.SCHED_STRATEGIES, asynpool.SCHED_STRATEGY_FCFS))
