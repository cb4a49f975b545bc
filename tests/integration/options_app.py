"""Singletons with Celery's own options that touch the same places as ours, beside those of `worker_app`."""

from __future__ import annotations

import importlib.util
import inspect
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, shared_task
from celery.worker.request import Request

from singleflight import Singleton
from tests.integration.worker_app import TTL, app, work
from tests.support.bodylog import BodyLog

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]

KNOWS_MODELS = (
    importlib.util.find_spec("pydantic") is not None
    and "pydantic" in inspect.signature(Celery._task_from_fun).parameters
)


class Traced(Request):  # type: ignore[misc]
    """A user's own request class, which leaves a trace for each hook that it overrides."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Leave a trace."""
        super().on_accepted(pid, time_accepted)
        self.note("accepted")

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Leave a trace."""
        super().on_timeout(soft, timeout)
        self.note("timeout")

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave a trace."""
        self.note("failure")
        return super().on_failure(exc_info, *args, **kwargs)

    def note(self, hook: str) -> None:
        """Write the hook down as if it were a body."""
        with BodyLog.from_environment().body(hook, self.id):
            pass


class Requesting(Task):  # type: ignore[misc]
    """A base class that names its request class, as Celery's documentation shows it."""

    abstract = True
    Request = "tests.integration.options_app:Traced"


@shared_task(name="requesting", bind=True, base=Requesting, singleton=Singleton(by="key", ttl=30))
def requesting(self: Task, key: str, **how: Any) -> Any:
    """Have a request class of the user's."""
    return work(self, key, **how)


@shared_task(
    name="again",
    bind=True,
    retry_on_worker_lost=True,
    default_retry_delay=1,
    singleton=Singleton(by="key", ttl=TTL),
)
def again(self: Task, key: str, **how: Any) -> Any:
    """Be retried by the worker if its process dies; Celery 5.7 knows how."""
    if self.request.retries:
        how["seconds"] = 0.0
    return work(self, key, **how)


@shared_task(name="quiet", bind=True, ignore_result=True, singleton=Singleton(by="key", ttl=TTL))
def quiet(self: Task, key: str, **how: Any) -> Any:
    """Keep no result unless a call asks for one."""
    return work(self, key, **how)


if KNOWS_MODELS:
    import pydantic

    class Order(pydantic.BaseModel):
        """An argument that is a model on both sides and JSON in between."""

        account: str
        note: str = ""

    def account(order: dict[str, Any], **_: Any) -> Any:
        """Return what the key is made of: `by` sees decoded arguments, no models."""
        return order["account"]

    def declare(name: str, options: Singleton) -> Callable[..., Any]:
        """Declare a task that takes a model."""

        def task(self: Task, order: Order, **how: Any) -> Any:
            return [type(order).__name__, work(self, order.account, **how)]

        task.__annotations__["order"] = Order  # Celery 5.5 does not look up names
        made: Callable[..., Any] = shared_task(name=name, bind=True, pydantic=True, singleton=options)(task)
        return made

    modelled = declare("modelled", Singleton(by=account))
    published = declare("modelled-once", Singleton(by=account, at_most_one="waiting_or_running"))
