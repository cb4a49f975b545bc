"""Pure decisions: what becomes of a refused run, how long it waits, when a lease is renewed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from singleflight.lease import Reason

if TYPE_CHECKING:
    from singleflight.lease import Busy
    from singleflight.policy import Policy

SHORTEST_DEFERRAL = 0.5
"""Seconds, less up to half: runs are often shorter than a second, and then the key is free soon."""

LONGEST_DEFERRAL = 15.0
"""Seconds. Brokers redeliver what they hold too long (the visibility timeout), so no countdown is long.

Where that timeout is short, a deferral is shorter still: each copy would be deferred by itself.
"""

GOES_FIRST_AFTER = 3
"""Deferrals after which a waiting run asks for a reservation, so that fresh runs cannot starve it."""

CROWD = 15
"""Deferrals of one run after which the log says that many wait for its key."""

OUTAGE = 6
"""Deferrals that a run is taken to have behind it while the store is away, which seldom is for a moment."""

SLOT_MARGIN = 10.0
"""Seconds that a waiting slot outlives the countdown of its run: time for the message to be fetched."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A refused run: how often and how long it has waited, and whether it can be a duplicate at all."""

    run_id: str
    deferrals: int = 0
    waited: float = 0.0
    """Seconds since the first deferral."""
    must_run: bool = False
    """A redelivered message, a retry, or a child of the holder: meeting another run, it waits."""
    age: float = math.inf
    """Seconds since the run in the way started, if known."""
    longest: float = LONGEST_DEFERRAL
    """Seconds that its broker lets it stay away."""
    in_line: bool = False
    """It comes from a line: if one may wait, it is that one."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A late copy of an ended run: acknowledge it, touch nothing."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Let the same run come back after ``delay`` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Skip:
    """End the run as a duplicate; ``gave_up`` if it had waited as long as it may."""

    gave_up: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """Let the run fail with a `Conflict`."""


Step = Drop | Defer | Skip | Refuse


def next_step(busy: Busy, policy: Policy, waiter: Waiter, jitter: float) -> Step:
    """Decide what becomes of a run whose claim was refused; ``jitter`` is a random number in [0, 1)."""
    if busy.reason is Reason.FINISHED:
        return Drop()
    until_free = busy.retry_after
    if busy.waiting == waiter.run_id:
        # It goes next, and the key is idle until it comes: a run that has been short so far may soon be over.
        until_free = min(until_free, max(SHORTEST_DEFERRAL, waiter.age))
    wait = Defer(deferral(waiter.deferrals, until_free, jitter, waiter.longest))
    if busy.reason is Reason.SAME_RUN or busy.resumed or waiter.must_run:
        return wait
    one_waits, all_wait = policy.one_waits, policy.on_conflict in ("defer", "join")
    if not (busy.waiting == waiter.run_id or waiter.in_line if one_waits else all_wait):
        return Refuse() if policy.on_conflict == "raise" else Skip()
    if policy.give_up_after is not None and waiter.waited >= policy.give_up_after:
        return Skip(gave_up=True)
    return wait


def deferral(deferrals: int, retry_after: float, jitter: float, longest: float = LONGEST_DEFERRAL) -> float:
    """Return for how many seconds a run stays away that has been deferred ``deferrals`` times before.

    From `SHORTEST_DEFERRAL` to ``longest``, growing by a quarter each time, so that a run sleeps about a
    fifth of what it has waited, and not beyond ``retry_after``; then less by up to half: those who wait for
    one key must not come in step, or of each step one gets in.
    """
    grown = min(longest, SHORTEST_DEFERRAL * 1.25 ** min(deferrals, 20))
    return min(grown, max(SHORTEST_DEFERRAL, retry_after)) * (1 - jitter / 2)


def slot_wait(deferrals: int) -> float:
    """Return for how many seconds a waiting run should ask for the slot before its next deferral."""
    return deferral(deferrals, LONGEST_DEFERRAL, 0.0) + SLOT_MARGIN
