"""The app of the worker tests, whose processes die at a point of the line that a test names by a file."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singleflight.leases.calling import Calling
from singleflight.stores.redis.store import RedisStore
from tests.integration.worker_app import FOLDER, app

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]


def die(point: str) -> None:
    """Kill this process, or its whole worker, if a test has said so; one file kills once."""
    for whom in ("child", "worker"):
        try:
            (Path(os.environ[FOLDER]) / f"kill-{whom}-{point}").unlink()
        except FileNotFoundError:
            continue
        if whom == "worker":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def dying(function: Callable[..., Any], before: str = "", after: str = "") -> Callable[..., Any]:
    """Return a function around which its process may die."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before and args[-1]:
            die(before)
        result = function(*args, **kwargs)
        if after:
            die(after)
        return result

    return call


Calling.publish = dying(Calling.publish, before="publish")  # type: ignore[method-assign]
RedisStore.sent = dying(RedisStore.sent, before="sent")  # type: ignore[method-assign]
RedisStore.park = dying(RedisStore.park, after="park")  # type: ignore[method-assign]
