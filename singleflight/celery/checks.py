"""What a worker checks when it starts: what cannot work stops it, what is dangerous is said once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps

from singleflight.celery.task import SingletonTask
from singleflight.log import logger
from singleflight.stores import risks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.celery.runtime import Runtime


class SetUp(bootsteps.Step):
    """Refuses to start a worker that has singleton tasks and no store for them, and logs warnings."""

    def __init__(self, worker: Any, **_options: Any) -> None:
        """Check the worker's app.

        Raises:
            ConfigurationError: if there is no store, or a task's options cannot work with its results.
        """
        runtime: Runtime = worker.app.singleflight
        tasks = [task for task in worker.app.tasks.values() if isinstance(task, SingletonTask)]
        if tasks and runtime.enabled:
            _ = runtime.leases
            for task in tasks:
                policy = runtime.policy(task)
                if policy is not None:
                    runtime.check_results(task, policy)
            for text in (*pool_findings(worker.pool_cls), *findings(runtime, tasks)):
                logger.warning("singleflight: %s", text)
            for text in risks_of(runtime.leases.store):
                logger.warning("singleflight: %s", text)


def pool_findings(pool: type) -> Iterator[str]:
    """Yield what is dangerous about a worker's pool: leases are proven in Celery's own only."""
    if not pool.__module__.startswith("celery.concurrency."):
        yield (
            f"the pool {pool.__module__}:{pool.__qualname__} is none of Celery's own: a singleton task that "
            "it calls in another thread fails instead of taking a lease, and an async one gives its lease "
            "back before its result is stored; use prefork, threads, gevent, eventlet or solo"
        )


def findings(runtime: Runtime, tasks: list[Any]) -> Iterator[str]:
    """Yield what is dangerous about an app's set-up, one sentence with its remedy each."""
    conf, visible = runtime.app.conf, runtime.visibility_timeout
    if place := runtime.first_of_several:
        yield (
            f"of the brokers to fail over between, the leases stay with the first, {place}: without it "
            "no run gets a lease; name a store that stays, such as singleflight_url='redis://leases:6379/0'"
        )
    late = [task for task in tasks if task.acks_late]
    early = [task.name for task in tasks if not task.acks_late]
    for task in late:
        limit = task.time_limit or conf.task_time_limit
        if visible is not None and limit is not None and limit >= visible:
            yield (
                f"{task.name} may run {limit:g} s but the broker delivers it again after {visible:g} s: "
                "copies will arrive and wait; raise visibility_timeout in broker_transport_options above it"
            )
    for task in tasks:
        policy = runtime.policy(task)
        if policy is not None and visible is not None and policy.ttl >= visible:
            yield f"{task.name}: ttl {policy.ttl:g} s is not below the visibility timeout of {visible:g} s"
    if early:
        yield (
            f"{', '.join(sorted(early))}: acknowledged before they run, so a run is lost if its worker dies; "
            "set acks_late=True and reject_on_worker_lost=True if it must come back"
        )
