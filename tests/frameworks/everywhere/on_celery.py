"""Install singleflight on every Celery app of this process, and perhaps make every task a singleton."""

from __future__ import annotations

import threading
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
        # In memory each app has a store of its own: the tests of one app trace the ids of another's again.
        own = f"{store}{id(self)}" if store == "memory://" else store
        install(self, own, enabled="observe" if mode == "observe" else True)

    Celery.__init__ = init
    if mode in ("observe", "singleton"):
        Task.singleton = Singleton(by="*", on_conflict="defer")
        if store == "memory://":
            _hide_threads()


def _hide_threads() -> None:
    """Hide our threads, which stay for the life of a process: Celery's unit tests look for new ones."""
    everyone = threading.enumerate
    threading.enumerate = lambda: [each for each in everyone() if not each.name.startswith("singleflight-")]
