"""Install singleflight on every Celery app of this process, and perhaps make every task a singleton."""

from __future__ import annotations

import math
from functools import wraps
from typing import Any

from celery import Celery, Task

from singleflight import Singleton
from singleflight.celery import install
from singleflight.leases.keeper import process_keeper


def put(mode: str, store: str | None) -> None:
    """Patch Celery; ``mode`` is the run's."""
    original = Celery.__init__

    @wraps(original)
    def init(self: Celery, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        install(self, store, enabled="observe" if mode == "observe" else True)

    Celery.__init__ = init
    if mode in ("observe", "singleton"):
        Task.singleton = Singleton(by="*", on_conflict="defer")
        if store == "memory://":
            _start_keeper()


def _start_keeper() -> None:
    """Start the keeper's two threads, which stay: Celery's unit tests look for threads that a test leaves."""
    keeper = process_keeper()
    for watch in (keeper._errands, keeper._alarm):
        watch.rouse(math.inf)
