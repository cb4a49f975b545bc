"""Tasks that ask for leases on an app that has none: Celery would run them unprotected without a word.

The option ``singleton=`` is nothing to Celery: any task may have any option. That one was meant for us is
seen once this package is imported, which a `Singleton` does that becomes a task's option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import current_app
from celery._state import _get_active_apps  # every app of the process: none other knows whose a message is
from celery.signals import before_task_publish, worker_init, worker_process_init

from singleflight.celery.delivery import option_of
from singleflight.celery.upgrade import upgrade_all
from singleflight.log import logger

if TYPE_CHECKING:
    from celery import Celery

_published: set[str] = set()
"""Tasks that this process has published; each is looked at once."""


@worker_init.connect(weak=False, dispatch_uid="singleflight.uninstalled")
def _at_start(sender: Any = None, **_: Any) -> None:
    """Warn when a worker starts."""
    app = sender.app
    if not hasattr(app, "singleflight"):
        _warn(app, [name for name, task in app.tasks.items() if option_of(task)])


@before_task_publish.connect(weak=False, dispatch_uid="singleflight.uninstalled")
def _at_first_call(sender: Any = None, **_: Any) -> None:
    """Warn when a process first publishes such a task."""
    if sender in _published:
        return
    _published.add(sender)
    apps = [app for app in _get_active_apps() if sender in app._tasks]  # noqa: SLF001 - `app.tasks` finalizes
    asking = [app for app in apps if option_of(app._tasks[sender])]  # noqa: SLF001
    if asking and not any(hasattr(app, "singleflight") for app in apps):
        _warn(asking[0], [sender])


@worker_process_init.connect(weak=False, dispatch_uid="singleflight.uninstalled")
def _in_pool_process(**_: Any) -> None:
    """Have singleton tasks fail in a process that got a copy of its app without what `install` had left.

    Only a pool that copies its app in a way of its own comes here; see `singleflight.celery.pickling`.
    """
    app = current_app._get_current_object()  # noqa: SLF001 - the app itself
    others = [other for other in _get_active_apps() if other.main == app.main]
    if not hasattr(app, "singleflight") and any(hasattr(other, "singleflight") for other in others):
        upgrade_all(app)


def _warn(app: Celery, names: list[str]) -> None:
    if names:
        logger.warning(
            "%s: declared with singleton=, but the app %r has no leases, so nothing keeps two runs apart; "
            "call singleflight.celery.install(app) where the app is made",
            ", ".join(sorted(names)), app.main,
        )  # fmt: skip
