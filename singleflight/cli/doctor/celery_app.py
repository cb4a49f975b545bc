"""What `doctor -A app` looks at: does a Celery app's set-up fit its singleton tasks."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from singleflight.celery.checks import findings
from singleflight.celery.runtime import key_rule
from singleflight.celery.task import SingletonTask
from singleflight.cli.doctor.celery_beat import of_beat
from singleflight.cli.doctor.findings import Finding, Level
from singleflight.errors import ConfigurationError, SingleflightError
from singleflight.keys import lease_key
from singleflight.printable import printable
from singleflight.stores.optional import Listing
from singleflight.stores.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.celery.runtime import Runtime
    from singleflight.stores.base import Store

KEYS_LOOKED_AT = 1000
"""How many keys of the prefix are looked at for tasks that the app does not have."""

STRANGERS_NAMED = 5


def of_app(app: Any, store: Store | None) -> Iterator[Finding]:
    """Look at an app that `install` was called for, and at what its beats have left in a store."""
    runtime: Runtime = app.singleflight
    tasks = [task for _, task in sorted(app.tasks.items()) if isinstance(task, SingletonTask)]
    yield Finding(Level.OK if tasks else Level.WARNING, f"{len(tasks)} singleton tasks")
    if runtime.enabled is not True:
        yield Finding(
            Level.WARNING,
            f"singleflight_enabled={runtime.enabled!r}: nothing is kept from running twice",
            "set it to True",
        )
    try:
        _ = runtime.defaults
    except ConfigurationError as error:
        yield Finding.said(Level.ERROR, str(error))
        tasks = []
    sound = []
    for task in tasks:
        try:
            yield from _of_task(runtime, task)
        except ConfigurationError as error:
            text = str(error).removeprefix(f"{task.name}: ")
            yield Finding.said(Level.ERROR, f"{task.name}: {text}")
        else:
            sound.append(task)
    for text in findings(runtime, sound):
        yield Finding.said(Level.WARNING, text)
    yield from _of_countdowns(app, tasks)
    if store is not None:
        yield from _of_prefix(app, store)
    yield from of_beat(app, store)


def _of_task(runtime: Runtime, task: Any) -> Iterator[Finding]:
    policy = runtime.policy(task)
    if policy is None:
        return
    for warning in key_rule(runtime.prefix, task, policy).warnings():
        yield Finding.said(Level.WARNING, warning)
    runtime.check_results(task, policy)


def _of_countdowns(app: Any, tasks: list[Any]) -> Iterator[Finding]:
    """Look for messages that wait in a worker for longer than the broker leaves them there."""
    visible = app.singleflight.visibility_timeout
    if visible is None:
        return
    remedy = "raise visibility_timeout in broker_transport_options above the longest countdown or ETA"
    long = [task.name for task in tasks if (task.default_retry_delay or 0) >= visible]
    if long:
        what = f"{', '.join(sorted(long))}: retries wait beyond the visibility timeout of {visible:g} s"
        yield Finding(Level.WARNING, f"{what}, so copies are delivered; they wait or are dropped", remedy)
    else:
        what = f"a countdown or ETA beyond {visible:g} s makes the broker deliver copies, which wait or are"
        yield Finding(Level.OK, f"{what} dropped; {remedy}, if you use any")


def _of_prefix(app: Any, store: Store) -> Iterator[Finding]:
    """Look for keys of tasks that the app does not have: another app may use its prefix.

    Two apps under one prefix take tasks of the same name for one. A key made of a name only may be a plain
    lease, of `singleflight run` say, which rightly stands beside the app's own.
    """
    prefix = app.singleflight.prefix
    if not isinstance(store, Listing):
        return
    strangers: set[str] = set()
    try:
        for key in islice(store.scan(prefix), KEYS_LOOKED_AT):
            holder = View(store.peek(key)).holder
            if holder is None or holder.task in app.tasks or key.startswith(f"{prefix}:beat:"):
                continue
            if key != lease_key(prefix, holder.task):
                strangers.add(holder.task)
    except SingleflightError:
        return  # what the store cannot do has been said
    if strangers:
        named = ", ".join(map(printable, sorted(strangers)[:STRANGERS_NAMED]))
        yield Finding(
            Level.WARNING,
            f"under the prefix {prefix!r} are keys of tasks that this app does not have: {named}; "
            "another app that shares it takes a task of the same name for the same",
            "give each app a singleflight_prefix of its own",
        )
