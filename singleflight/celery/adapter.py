"""What admission asks of Celery, for the request that a task works on."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from singleflight.celery import endings, joining, line
from singleflight.celery.abort import Abort
from singleflight.celery.state import state_of
from singleflight.tasks.adapter import Adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from singleflight.celery.runtime import Runtime
    from singleflight.tasks.adapter import Nothing, Result
    from singleflight.tasks.message import Carried


class CeleryAdapter(Adapter):
    """One delivery at a worker, or one eager run."""

    def __init__(self, runtime: Runtime, task: Task, run_id: str) -> None:
        self._runtime, self._task, self._run_id = runtime, task, run_id

    @property
    def owner(self) -> Callable[[], object]:
        """See `Adapter.owner`."""
        return weakref.ref(self._task.request)

    @property
    def longest_deferral(self) -> float:
        """See `Adapter.longest_deferral`."""
        return self._runtime.longest_deferral

    @property
    def has_later(self) -> bool:
        """See `Adapter.has_later`."""
        return not state_of(self._task.request).eager

    @property
    def shares_results(self) -> bool:
        """See `Adapter.shares_results`."""
        readable = joining.scheme(self._task) not in joining.UNREADABLE
        return readable and not endings.ignores_result(self._task)

    def countable(self, delay: float) -> float:
        """See `Adapter.countable`."""
        return endings.countable(self._task, delay)

    def message(self, carried: Carried) -> bytes | None:
        """See `Adapter.message`."""
        return line.message_of(self._task, self._run_id, carried)

    def result_of(self, run_id: str) -> Result | Nothing | None:
        """See `Adapter.result_of`."""
        return joining.result_of(self._task, run_id)

    def abort(self) -> Abort:
        """See `Adapter.abort`."""
        return Abort()
