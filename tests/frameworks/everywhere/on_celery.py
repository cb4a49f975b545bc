"""Install singleflight on every Celery app of this process, and perhaps make every task a singleton."""

from __future__ import annotations

from functools import wraps
from typing import Any

from celery import Celery, Task

from singleflight import Singleton
from singleflight.celery import install


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
