"""Tasks of the canvas tests, beside those of `worker_app`: a singleton for each way to treat a duplicate."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from singleflight import Singleton
from tests.integration.worker_app import app, work

__all__ = ["MODES", "app", "collect", "step"]

MODES: dict[str, Singleton] = {
    "skip": Singleton(by="key"),
    "skip_result": Singleton(by="key", skip_result="skipped"),
    "defer": Singleton(by="key", on_conflict="defer"),
    "coalesce": Singleton(by="key", on_conflict="coalesce"),
    "join": Singleton(by="key", on_conflict="join"),
    "raise": Singleton(by="key", on_conflict="raise"),
}


def declare(mode: str, options: Singleton) -> None:
    """Declare the singleton task ``canvas.<mode>``; its result is its key."""

    @shared_task(name=f"canvas.{mode}", bind=True, singleton=options)
    def duplicate(self: Task, key: str, gate: str = "", seconds: float = 0.0) -> str:
        work(self, key, gate=gate, seconds=seconds)
        return key


for _mode, _options in MODES.items():
    declare(_mode, _options)


@shared_task(name="canvas.step", bind=True)
def step(self: Task, key: str = "step") -> str:
    """Be an ordinary step, seen in the log under its key."""
    work(self, key)
    return "step"


@shared_task(name="canvas.collect", bind=True)
def collect(self: Task, values: Any, key: str) -> Any:
    """Be a chord's body: return what the header came to."""
    work(self, key)
    return values
