"""Tasks of the publishing tests, beside those of `worker_app`: duplicates are recognised when published."""

from __future__ import annotations

import os
from typing import Any

from celery import Task, shared_task

from singleflight import Singleton
from tests.integration.worker_app import app, block_of, work

__all__ = ["app"]

TTL = 2.0
SIDE = "PUBLISH_SIDE"
"""Set in workers only, to have a key that worker and publisher disagree about."""


@shared_task(
    name="once",
    bind=True,
    max_retries=None,
    acks_late=True,
    reject_on_worker_lost=True,
    singleton=Singleton(by="key", ttl=TTL, at_most_one="waiting_or_running"),
)
def once(self: Task, key: str, **how: Any) -> Any:
    """Wait or run, but not both."""
    return work(self, key, **how)


@shared_task(
    name="next",
    bind=True,
    max_retries=None,
    acks_late=True,
    reject_on_worker_lost=True,
    singleton=Singleton(by="key", ttl=TTL, at_most_one="waiting_and_running"),
)
def following(self: Task, key: str, **how: Any) -> Any:
    """Run, while one more waits."""
    return work(self, key, **how)


@shared_task(
    name="strict",
    bind=True,
    singleton=Singleton(by="key", ttl=TTL, at_most_one="waiting_or_running", on_conflict="raise"),
)
def strict(self: Task, key: str, **how: Any) -> Any:
    """Refuse duplicates."""
    return work(self, key, **how)


@shared_task(
    name="patient",
    bind=True,
    max_retries=1,
    singleton=Singleton(by="key", ttl=TTL, at_most_one="waiting_or_running"),
)
def patient(self: Task, key: str, countdown: float = 3 * TTL) -> Any:
    """Retry once, much later than its lease lives."""
    work(self, key)
    if not self.request.retries:
        raise self.retry(countdown=countdown)
    return self.request.id


def declare_loop(name: str, options: Singleton) -> None:
    """Declare a task whose last line publishes its own successor, until there have been enough rounds."""

    @shared_task(name=name, bind=True, singleton=options)
    def loop(self: Task, key: str, rounds: int, countdown: float = 0, inside: str = "") -> Any:
        work(self, key)
        if rounds <= 1:
            return None
        kwargs = {"key": key, "rounds": rounds - 1, "countdown": countdown, "inside": inside}
        with block_of(inside):
            result = self.apply_async(kwargs=kwargs, countdown=countdown)
            second = self.apply_async(kwargs=kwargs, countdown=countdown)
        return [_said(result), _said(second), second.id == result.id]


def _said(result: Any) -> str:
    return "duplicate" if getattr(result, "duplicate", False) else "accepted"


declare_loop("loop-once", Singleton(by="key", ttl=TTL, at_most_one="waiting_or_running"))
declare_loop("loop-next", Singleton(by="key", ttl=TTL, at_most_one="waiting_and_running"))


def seen_from_here(key: str, **_: Any) -> list[str]:
    """Make worker and publisher disagree about a key, as in a rolling deployment."""
    return [key, os.environ.get(SIDE, "publisher")]


@shared_task(
    name="disputed", bind=True, singleton=Singleton(by=seen_from_here, at_most_one="waiting_or_running")
)
def disputed(self: Task, key: str, **how: Any) -> Any:
    """Have another key in each process."""
    return work(self, key, **how)


@shared_task(name="decoded", bind=True, singleton=Singleton(by="*", at_most_one="waiting_or_running"))
def decoded(self: Task, key: str, values: Any) -> Any:
    """Have an argument that its serializer changes."""
    work(self, key)
    return values


@shared_task(
    name="join", bind=True, max_retries=None, singleton=Singleton(by="key", ttl=TTL, on_conflict="join")
)
def join(self: Task, key: str, **how: Any) -> Any:
    """Be joined by duplicates; the result is the run's own id."""
    return work(self, key, **how)
