"""One `run` from its claim to its exit code."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from singleflight.cli.exits import Exit
from singleflight.cli.output import Failure, speak, speak_of_leases
from singleflight.cli.run.aside import AFTER_SIGNAL, Aside, Interrupted
from singleflight.cli.run.child import Child, environment
from singleflight.cli.run.guard import FOR_EVER, Guard
from singleflight.cli.run.signals import ENDING
from singleflight.cli.run.waiting import obtain
from singleflight.errors import ConfigurationError, Conflict, StoreUnavailable
from singleflight.lease import Lease, Outcome
from singleflight.leases.claiming import Leases
from singleflight.leases.keeper import process_keeper
from singleflight.stores import STORE_TIMEOUT, open_store
from singleflight.stores.base import REMEMBER, RUNS_KEPT
from singleflight.stores.view import View

if TYPE_CHECKING:
    from singleflight.cli.run.guard import Limits
    from singleflight.cli.run.signals import Signals
    from singleflight.cli.run.terminal import Terminal
    from singleflight.leases.claiming import Request
    from singleflight.stores.base import Store

OCCURRENCES = 40 * 86400.0
"""Seconds for which a key with planned times is remembered: a monthly job's last time is still known."""

LAST_WORD = 1.0
"""Seconds that the release of a command may take that was ended by a signal sent to us."""

LONGEST = 3.0
"""Seconds for one request, if the ttl leaves room for several: a cron job has more time than a web page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one call of `run` was asked to do."""

    store: str
    request: Request
    wait: float
    """Seconds to wait for the lease; 0 asks once."""
    limits: Limits
    conflict: int
    """The exit code if the lease is not granted; 0 also means not to speak of it."""
    planned: bool
    """The run's id is a planned time."""
    argv: tuple[str, ...]


def carry_out(plan: Plan, signals: Signals, terminal: Terminal | None) -> int:
    """Claim, run, give back; return the exit code.

    Raises:
        Failure: with the line to say, for whatever kept the command from running.
    """
    speak_of_leases(logging.CRITICAL)  # what goes wrong before the command starts is said once, at the end
    name = plan.request.task
    try:
        store = open_store(
            plan.store,
            timeout=min(LONGEST, max(STORE_TIMEOUT, plan.request.ttl / 10)),
            remember=OCCURRENCES if plan.planned else REMEMBER,
        )
    except ConfigurationError as error:  # nothing has been asked yet: the URL is wrong, or a driver missing
        raise Failure(str(error), Exit.USAGE) from error
    try:
        if plan.planned and Aside(signals, lambda: _forgotten(store, plan.request)).wait():
            raise Failure(f"{name}: too many later runs are known to tell if this one was", plan.conflict)
        lease = obtain(Leases(store), plan.request, signals, wait=plan.wait, alone=not plan.planned)
    except (ConfigurationError, StoreUnavailable) as error:
        raise Failure(f"{name} not started: {error}", Exit.STORE) from error
    except Interrupted as signalled:
        process_keeper().stop_timeout = AFTER_SIGNAL
        return Exit.signalled(signalled.args[0])
    except Conflict as conflict:
        if plan.conflict:
            speak(f"{name} not started: {conflict.busy}")
        return plan.conflict
    return _run(plan, lease, signals, terminal)


def _run(plan: Plan, lease: Lease, signals: Signals, terminal: Terminal | None) -> int:
    outcome = Outcome.REQUEUED
    lease.began = False  # until it has, its window is not used up
    timeout = FOR_EVER
    try:
        for number in signals.wait(0):
            if number in ENDING:
                timeout = AFTER_SIGNAL
                return Exit.signalled(number)
        try:
            child = Child(plan.argv, environment(lease.key, lease.fence), terminal)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            raise Failure(
                f"unable to run {plan.argv[0]}: {error.strerror}",
                Exit.NOT_FOUND if missing else Exit.NOT_EXECUTABLE,
            ) from error
        lease.began = True
        speak_of_leases(logging.WARNING)
        guard = Guard(child, lease, signals, plan.limits, terminal)
        code = guard.stay()
        if guard.told_to_end:
            timeout = LAST_WORD
        if guard.cause is Exit.LOST:
            # As after a crash: a planned time that was cut short is still to be done.
            speak(f"{plan.request.task} was ended, because its lease could not be trusted any more")
            return Exit.LOST
        outcome = Outcome.FAILED if code or guard.cause else Outcome.FINISHED
        if guard.cause is Exit.TIMEOUT:
            speak(f"{plan.request.task} was ended after {plan.limits.timeout:g} s")
            return Exit.TIMEOUT
        return Exit.signalled(-code) if code < 0 else code
    finally:
        _give_back(lease, outcome, signals, timeout)


def _give_back(lease: Lease, outcome: Outcome, signals: Signals, timeout: float) -> None:
    """Release; whoever has told us to end does not wait long for a store that hangs."""
    try:
        Aside(signals, lambda: lease.release(outcome)).wait(timeout)
    except (Interrupted, TimeoutError):
        process_keeper().stop_timeout = AFTER_SIGNAL


def _forgotten(store: Store, request: Request) -> bool:
    """Whether a planned time is older than all that a full record remembers: it may have been run."""
    known = []
    for run in View(store.peek(request.key)).runs:
        with suppress(ValueError):  # a run without a planned time, or a task's
            known.append(datetime.fromisoformat(run.run_id))
    return len(known) >= RUNS_KEPT and datetime.fromisoformat(request.run_id) < min(known)
