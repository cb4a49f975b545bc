"""The sweep of a worker: in its main process, from when its pool is up until it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps

from singleflight.celery.task import SingletonTask
from singleflight.tasks.line import Sweep

if TYPE_CHECKING:
    from singleflight.celery.runtime import Runtime


class Sweeping(bootsteps.StartStopStep):
    """Calls those who wait in line where whoever should have called them has died."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        """Only a worker that can put a run into the line."""
        runtime: Runtime = worker.app.singleflight
        has_tasks = any(isinstance(task, SingletonTask) for task in worker.app.tasks.values())
        return bool(has_tasks and runtime.enabled and runtime.leases.calling)

    def create(self, worker: Any) -> Sweep:
        """Return what is started and stopped."""
        return Sweep(worker.app.singleflight.leases)
