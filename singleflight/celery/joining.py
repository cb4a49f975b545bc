"""``on_conflict="join"``: a duplicate takes over how the run it met has ended, as soon as that is known."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from billiard.exceptions import WorkerLostError
from celery import states

from singleflight.celery import endings
from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.identity import message_id_of
from singleflight.lease import Busy, Reason
from singleflight.log import struck
from singleflight.policy import UNSET
from singleflight.stores.view import View

if TYPE_CHECKING:
    from celery import Task

    from singleflight.celery.runtime import Runtime
    from singleflight.policy import Policy
    from singleflight.tasks.message import Carried

UNREADABLE = ("", "disabled", "rpc")
"""Result backends, by scheme, from which no worker can read another run's result."""


@dataclass(frozen=True, slots=True)
class Other:
    """The run that was met, as the result backend knows it."""

    run_id: str
    state: str
    result: Any

    @property
    def retries(self) -> bool:
        """True if it has failed and will be tried again: its key is free meanwhile."""
        return bool(self.state == states.RETRY)

    @property
    def busy(self) -> Busy:
        """What a claim would be told if it kept its key meanwhile."""
        return Busy(Reason.RUNNING, self.run_id, math.inf)

    @property
    def is_over(self) -> bool:
        """True if it has an outcome to take over; one that was revoked, or lost its process, has none."""
        if self.state == states.FAILURE:
            return isinstance(self.result, Exception) and not isinstance(self.result, WorkerLostError)
        return bool(self.state == states.SUCCESS)

    def take_over(self) -> Any:
        """Return what it returned, or raise what it raised."""
        if self.state == states.SUCCESS:
            return self.result
        raise self.result


def joins(task: Task, policy: Policy, carried: Carried) -> bool:
    """Say whether a duplicate takes over the result of the run it meets.

    So does one whose publisher has asked for the waiting slot: others may have been given its result, and
    who lost a race of publishers is no worse off than who came later.
    """
    if policy.on_conflict == "join":
        return True
    shares = policy.at_most_one == "waiting_or_running" and policy.on_conflict == "skip"
    readable = scheme(task) not in UNREADABLE and not endings.ignores_result(task)
    return shares and policy.skip_result is UNSET and carried.slot is not None and readable


def met(task: Task, policy: Policy, carried: Carried) -> Other | None:
    """Look how the run is doing that a message waits for; None if it joins none."""
    run_id = carried.joins
    if run_id is None or not joins(task, policy, carried):
        return None
    try:
        meta = task.backend.get_task_meta(message_id_of(run_id))
    except Exception as error:  # whatever the driver raises: no answer is no result
        if struck(error):
            raise
        return Other(run_id, states.PENDING, None)
    return Other(run_id, meta["status"], meta.get("result"))


def was_there(runtime: Runtime, key: str, run_id: str) -> bool:
    """Return whether a run has had, or waited for, a key: the message that says so may be anybody's.

    Else a message could hand the result of any task to whoever may read its own.
    """
    try:
        return run_id in View(runtime.leases.store.peek(key)).known_runs
    except StoreUnavailable:
        return False  # what happens while the store is away is for the claim to find out


def will_go_on(runtime: Runtime, key: str, run_id: str) -> bool:
    """Return whether a run between two attempts will have another one, as far as the store can know.

    One whose worker was shut down looks to the result backend as if it were to be retried, though nothing
    may have been published.
    """
    try:
        return View(runtime.leases.store.peek(key)).between_attempts(run_id)
    except StoreUnavailable:
        return True


def check(task: Any, policy: Policy) -> None:
    """Refuse to join where that could never work, or would hand out the wrong result.

    Raises:
        ConfigurationError: naming the remedy.
    """
    if policy.on_conflict != "join":
        return
    if task.ignore_result:
        raise ConfigurationError(
            "on_conflict='join' takes over a result, and ignore_result=True keeps none; leave one of them out"
        )
    if policy.name is not None:
        raise ConfigurationError(
            f"on_conflict='join' with name={policy.name!r} would take over another task's result; "
            "leave one of them out"
        )
    if policy.by == () and not policy.by_given and inspect.signature(task.run).parameters:
        raise ConfigurationError(
            "on_conflict='join' without `by` would hand the result of one call to calls with other "
            "arguments; write by='*', or by=() if that is meant"
        )


def scheme(task: Task) -> str:
    """Return the scheme of the result backend's URL, empty if there is none."""
    return str(task.app.conf.result_backend or "").partition(":")[0]


def check_backend(backend: str) -> None:
    """Refuse a result backend that no worker can read.

    Raises:
        ConfigurationError: naming the remedy.
    """
    if backend in UNREADABLE:
        shown = f"{backend}://" if backend else "an app without a result backend"
        raise ConfigurationError(
            f"on_conflict='join' takes over a result, and {shown} shows none to a worker; set "
            "result_backend to one that all can read, such as redis://"
        )
