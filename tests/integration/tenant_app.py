"""Tasks of tenants, beside those of `worker_app`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery import Task, shared_task
from celery.signals import task_prerun

from singleflight import Singleton
from tests.integration.worker_app import TTL, app, work

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["app"]

schema: ContextVar[str] = ContextVar("schema", default="public")
"""What a library for tenants keeps: the database's schema that this process uses now."""


def by_header(key: str, headers: Mapping[str, Any], **_: Any) -> list[str]:
    """Tell tenants apart by the message."""
    return [key, headers["tenant"]]


def by_schema(key: str, **_: Any) -> list[str]:
    """Tell tenants apart by what this process has been switched to."""
    return [key, schema.get()]


@task_prerun.connect(weak=False)
def switch(task: Any = None, **_: Any) -> None:
    """Do what a library for tenants does; `by` is asked after it."""
    schema.set((task.request.headers or {}).get("tenant", "public"))


@shared_task(name="by-header", bind=True, max_retries=None, singleton=Singleton(by=by_header, ttl=TTL))
def header_task(self: Task, key: str, **how: Any) -> Any:
    """Run once for each tenant."""
    return work(self, key, **how)


@shared_task(name="by-schema", bind=True, singleton=Singleton(by=by_schema, ttl=TTL))
def schema_task(self: Task, key: str, **how: Any) -> Any:
    """Run once for each tenant."""
    return work(self, key, **how)


@shared_task(
    name="looked", bind=True, singleton=Singleton(by=by_header, ttl=TTL, at_most_one="waiting_or_running")
)
def looked(self: Task, key: str, **how: Any) -> Any:
    """Run once for each tenant, who may wait."""
    return work(self, key, **how)
