"""singleflight for Celery: ``install(app)``, and every task declared ``singleton=...`` takes a lease."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from singleflight.errors import NotInstalled

if find_spec("celery") is None:
    raise NotInstalled.of("celery", "celery")

from celery.signals import task_failure, task_postrun, worker_init

from singleflight.celery import checks, gate, sweeping
from singleflight.celery import uninstalled as uninstalled  # its receivers
from singleflight.celery.errors import Skipped
from singleflight.celery.peeking import apeek, peek
from singleflight.celery.pickling import carry_along
from singleflight.celery.runtime import Runtime
from singleflight.celery.sending import watch_sending
from singleflight.celery.upgrade import upgrade_all, watch_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from celery import Celery

    from singleflight.events import Event
    from singleflight.policy import Singleton
    from singleflight.stores.base import Store

__all__ = ["Skipped", "apeek", "install", "peek"]


def install(
    app: Celery,
    store: Store | str | None = None,
    *,
    prefix: str | None = None,
    enabled: bool | Literal["observe"] | None = None,
    defaults: Singleton | Mapping[str, Any] | None = None,
    store_timeout: float | None = None,
    remember: float | None = None,
    listeners: Iterable[Callable[[Event], None]] | None = None,
    log_levels: Mapping[str, str | int] | None = None,
    eager: bool | None = None,
    waiting: Literal["auto", "line", "countdown"] | None = None,
) -> None:
    """Let an app's tasks be singletons, whether they are declared before or after; the last call counts.

    Each keyword that is not given is read from ``app.conf.singleflight_<keyword>`` at first use, and the
    store from ``singleflight_url``.

    Args:
        app: the Celery app.
        store: a store or its URL. Built in: the broker's Redis or Valkey.
        prefix: what all keys start with, behind the broker's ``global_keyprefix``; built in ``singleflight``.
        enabled: True (built in), False, or ``"observe"``: everything runs, conflicts are logged and counted.
        defaults: options of every singleton task that says nothing else.
        store_timeout: seconds that one request to the store may take, built in 1.
        remember: seconds for which an ended run is recognised; built in two hours, at least twice the
            broker's visibility timeout.
        listeners: called with each `singleflight.Event`, after the log.
        log_levels: the levels of log lines that are not to have their usual one, by kind of event:
            ``{"skipped": "WARNING"}``.
        eager: take leases in eager runs too, built in False.
        waiting: how runs wait that are refused and must run: ``"line"``, in the store, from where the next
            one is sent on as soon as the key is free; ``"countdown"`` (built in), by coming back later; or
            ``"auto"``: in the line if the store is the broker's own server, or SQL.

    Raises:
        ConfigurationError: if a task is already declared with options that cannot be.
    """
    given = {
        "prefix": prefix,
        "enabled": enabled,
        "defaults": defaults,
        "store_timeout": store_timeout,
        "remember": remember,
        "listeners": None if listeners is None else tuple(listeners),
        "log_levels": log_levels,
        "eager": eager,
        "waiting": waiting,
    }
    first = not hasattr(app, "singleflight")
    app.singleflight = Runtime(app, store, given)
    if first:
        carry_along(app, install)
        watch_registry(app)
        watch_sending(app)
        app.on_after_finalize.connect(_look_again, weak=False)
        app.steps["worker"].add(checks.SetUp)
        app.steps["worker"].add(sweeping.Sweeping)


def _look_again(sender: Any = None, **_: Any) -> None:
    upgrade_all(sender)


@task_postrun.connect(weak=False, dispatch_uid="singleflight.release")
def _task_postrun(task_id: str | None = None, task: Any = None, state: str | None = None, **_: Any) -> None:
    gate.release(task, task_id, state)


@task_failure.connect(weak=False, dispatch_uid="singleflight.beat")
def _task_failure(sender: Any = None, task_id: str = "", exception: Any = None, **_: Any) -> None:
    from singleflight.celery.beat_failures import pause_entry_of  # noqa: PLC0415 - most workers need it never

    pause_entry_of(sender, task_id, exception)


@worker_init.connect(weak=False, dispatch_uid="singleflight.upgrade")
def _worker_init(sender: Any = None, **_: Any) -> None:
    if hasattr(sender.app, "singleflight"):
        from singleflight.celery.revoking import watch_revocations  # noqa: PLC0415 - workers only

        watch_revocations()
        upgrade_all(sender.app)
