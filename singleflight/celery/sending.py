"""What leaves an app: the option ``singleton=`` survives wherever a message or a signature takes it.

All that Celery publishes goes through ``app.send_task``: calls of tasks, calls by name, and signatures that
a worker has unpacked. Celery's signals come too late, for they cannot refuse a call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from celery.utils import uuid
from kombu.utils.json import register_type

from singleflight.celery import marks
from singleflight.celery.delivery import HEADER, Header
from singleflight.celery.publish import carry
from singleflight.celery.task import SingletonTask
from singleflight.errors import ConfigurationError
from singleflight.options import Singleton
from singleflight.tasks.message import Carried, mapping

if TYPE_CHECKING:
    from celery import Celery

TASK_ID = 4
"""The place of the task id among the arguments of ``send_task`` behind the name."""

FLOWS = ("chain", "group", "chord")
"""Signatures whose arguments are signatures."""

# A signature may be anywhere among the arguments of a call, too.
register_type(Singleton, None, Singleton.to_header)


def watch_sending(app: Celery) -> None:
    """Have all that an app publishes carry ``singleton=`` in our header, or refuse it to the caller."""
    own = vars(app).get("send_task")

    @functools.wraps(app.send_task)
    def send_task(name: str, *more: Any, **options: Any) -> Any:
        send = own or _send_of_class(app)
        if "singleton" in options:
            _carry(app, name, options)
        for signature in _signatures(options):
            settle(app, signature)
        if not isinstance(options.get("task_type"), SingletonTask) and _may_take_leases(app, name):
            marks.mark(app, options)
        header = mapping(options.get("headers")).get(HEADER)
        if not isinstance(header, Header):
            return send(name, *more, **options)
        if len(more) <= TASK_ID:
            options["task_id"] = options.get("task_id") or uuid()
        header.bind(more[TASK_ID] if len(more) > TASK_ID else options["task_id"], name)
        result = send(name, *more, **options)
        if header.sent is not None:
            header.sent(result.id)
        return result

    app.send_task = send_task


def _send_of_class(app: Celery) -> Any:
    """Return the `send_task` of an app's class as it is now: tests and tracers put theirs there later."""
    send = inspect.getattr_static(app.__class__, "send_task")
    return send.__get__(app) if hasattr(send, "__get__") else send


def _registered(app: Celery, name: str) -> Any:
    """Return the task of a name, None if it is known elsewhere only."""
    tasks = app._tasks  # noqa: SLF001 - `app.tasks` would finalize the app
    # Not `get`: like Celery, take any registry that answers to `in` and `[]`.
    return tasks[name] if name in tasks else None  # noqa: SIM401


def _may_take_leases(app: Celery, name: str) -> bool:
    """Say whether a task is a singleton, or known elsewhere only."""
    task = _registered(app, name)
    return task is None or isinstance(task, SingletonTask)


def settle(app: Celery, signature: Any) -> None:
    """Make ``singleton=`` in a signature, and in those that it brings along, something that can travel.

    Raises:
        ConfigurationError: for options that cannot, or a task that takes no lease.
    """
    options = signature.get("options") or {}
    if "singleton" in options:
        _check_takes_leases(app, signature["task"], options["singleton"])
        options["singleton"] = _portable(options["singleton"])
    brought = signature.get("kwargs") or {} if signature.get("subtask_type") in FLOWS else {}
    for each in (*_signatures(options), *_signatures(brought)):
        settle(app, each)


def _signatures(options: Mapping[str, Any]) -> Iterator[Any]:
    for name in ("link", "link_error", "chain", "chord", "tasks", "header", "body"):
        value = options.get(name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, Mapping):
                yield each


def _carry(app: Celery, name: str, options: dict[str, Any]) -> None:
    task = _registered(app, name)
    if isinstance(task, SingletonTask):
        carry(task, options)
        return
    call = options.pop("singleton")
    _check_takes_leases(app, name, call)
    read = Singleton.from_call(call)
    header = Header(Carried(options=False if read is None else read))
    options["headers"] = {**(options.get("headers") or {}), HEADER: header}


def _check_takes_leases(app: Celery, name: str, call: object) -> None:
    """Refuse to ask for a lease for a task that is known here and can take none."""
    task = _registered(app, name)
    if task is None or isinstance(task, SingletonTask) or Singleton.from_call(call) is None:
        return
    raise ConfigurationError(
        f"singleton={call!r} for task {name}, which is not declared a singleton and takes no lease; write "
        "@app.task(singleton=True), and singleton=False at the calls that need none"
    )


def _portable(call: object) -> object:
    read = Singleton.from_call(call)
    return read.to_header() if isinstance(call, Singleton) and read is not None else call
