"""How a worker's pool processes are started.

``fork`` is what Linux does by itself. ``spawn`` is macOS' own default, and from Celery 5.7 on the setting
``worker_pool_start_method``; ``forkserver`` can be had from billiard only.
"""

from __future__ import annotations

import os

import celery

METHOD = "POOL_START_METHOD"
"""Environment variable with the start method: of a worker, or, set for the tests, of all their workers."""
METHODS = ("fork", "spawn", "forkserver")
CHOSEN = os.environ.get(METHOD, "")


def environment(method: str) -> dict[str, str]:
    """Return what a worker's environment must hold for a start method."""
    # Celery before 5.7 wants to be told that its processes are new interpreters, as on Windows.
    told = method != "fork" and celery.VERSION < (5, 7)
    return {METHOD: method, **({"FORKED_BY_MULTIPROCESSING": "1"} if told else {})}
