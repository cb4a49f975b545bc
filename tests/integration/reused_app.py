"""Tasks of the tests on reused ids, beside those of `worker_app`."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from singleflight import Singleton
from tests.integration.worker_app import TTL, app, work

__all__ = ["app"]


@shared_task(name="resending", bind=True, singleton=Singleton(by="key", ttl=TTL, on_conflict="defer"))
def resending(self: Task, key: str, rounds: int, how: str = "apply_async") -> Any:
    """Publish its own successor under its own id, until there have been enough rounds."""
    work(self, key)
    if rounds > 1:
        if how == "signature":
            # What people write who want to keep the message's headers, route and priority.
            self.signature_from_request(self.request, args=(key, rounds - 1, how), kwargs={}).apply_async()
        else:
            self.apply_async((key, rounds - 1), task_id=self.request.id, headers=self.request.headers)
    return rounds


@shared_task(name="parent", bind=True, acks_late=True, reject_on_worker_lost=True)
def parent(self: Task, key: str, child: str, then: str = "") -> Any:
    """Publish a child under a given id, then end as told."""
    self.app.tasks["late"].apply_async((child,), task_id=f"{child}-id")
    return work(self, key, then=then)
