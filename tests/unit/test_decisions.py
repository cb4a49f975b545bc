"""What becomes of a refused run, for every refusal, policy and waiter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight.lease import Busy, Reason, margin, renewal_interval
from singleflight.options import AtMostOne, OnConflict
from singleflight.policy import EFFECTS, Policy, Singleton, resolve
from singleflight.tasks.decisions import (
    LONGEST_DEFERRAL,
    SHORTEST_DEFERRAL,
    Defer,
    Drop,
    Refuse,
    Skip,
    Waiter,
    deferral,
    next_step,
    slot_wait,
)

PAIRS = sorted(EFFECTS)
JITTER = st.floats(0, 1, exclude_max=True)
SECONDS = st.floats(0, 1e9)
DEFERRALS = st.integers(0, 10_000)


def policy_of(at_most_one: AtMostOne, on_conflict: OnConflict) -> Policy:
    """Return a task's policy."""
    return resolve(task=Singleton(at_most_one=at_most_one, on_conflict=on_conflict))


policies = st.sampled_from(PAIRS).map(lambda pair: policy_of(*pair))
busies = st.builds(
    Busy,
    st.sampled_from(Reason),
    st.sampled_from(["mine", "other", ""]),
    SECONDS,
    resumed=st.booleans(),
    waiting=st.sampled_from(["mine", "other", ""]),
    ended=st.booleans(),
)
waiters = st.builds(
    Waiter,
    st.just("mine"),
    deferrals=DEFERRALS,
    waited=SECONDS,
    must_run=st.booleans(),
    age=SECONDS | st.just(math.inf),
    longest=st.floats(1, 15),
)
FRESH = Waiter("mine")
TAKEN = Busy(Reason.RUNNING, "other", 20.0)


# --- what becomes of it -------------------------------------------------------------------------------


@given(busies, policies, waiters, JITTER)
def test_a_late_copy_of_an_ended_run_is_always_dropped_and_nothing_else_is(
    busy: Busy, policy: Policy, waiter: Waiter, jitter: float
) -> None:
    """Whatever the policy says; and a drop, which touches nothing, happens to no other run."""
    step = next_step(busy, policy, waiter, jitter)

    assert (step == Drop()) == (busy.reason is Reason.FINISHED)


@given(busies, policies, waiters, JITTER, st.floats(0, 1e6) | st.none())
def test_a_run_that_is_no_duplicate_is_never_skipped_or_refused(
    busy: Busy, policy: Policy, waiter: Waiter, jitter: float, give_up_after: float | None
) -> None:
    """Its own copy is alive, it has started before, or it belongs to the one in the way: it waits."""
    policy = replace(policy, give_up_after=give_up_after)
    step = next_step(busy, policy, waiter, jitter)

    if busy.reason is not Reason.FINISHED and (
        busy.reason is Reason.SAME_RUN or busy.resumed or waiter.must_run
    ):
        assert isinstance(step, Defer)


@pytest.mark.parametrize(
    ("pair", "with_slot", "without_slot"),
    [
        (("running", "skip"), Skip, Skip),
        (("running", "defer"), Defer, Defer),
        (("running", "coalesce"), Defer, Skip),
        (("running", "raise"), Refuse, Refuse),
        (("running", "join"), Defer, Defer),
        (("waiting_or_running", "skip"), Skip, Skip),
        (("waiting_or_running", "raise"), Refuse, Refuse),
        (("waiting_or_running", "join"), Defer, Defer),
        (("waiting_and_running", "skip"), Defer, Skip),
        (("waiting_and_running", "coalesce"), Defer, Skip),
        (("waiting_and_running", "raise"), Defer, Refuse),
    ],
    ids=str,
)
def test_a_duplicate_ends_as_its_policy_says(
    pair: tuple[AtMostOne, OnConflict], with_slot: type, without_slot: type
) -> None:
    """Where one may wait, the run in the waiting slot does; all others end at once."""
    assert sorted(EFFECTS) == PAIRS
    policy = policy_of(*pair)

    assert type(next_step(replace(TAKEN, waiting="mine"), policy, FRESH, 0.5)) is with_slot
    assert type(next_step(replace(TAKEN, waiting="third"), policy, FRESH, 0.5)) is without_slot
    assert type(next_step(replace(TAKEN, waiting=""), policy, FRESH, 0.5)) is without_slot


def test_the_table_above_names_every_legal_pair() -> None:
    """A new policy needs a line there."""
    table = test_a_duplicate_ends_as_its_policy_says.pytestmark[0].args[1]  # type: ignore[attr-defined]

    assert sorted(pair for pair, _, _ in table) == PAIRS
    assert len(PAIRS) < len(get_args(AtMostOne)) * len(get_args(OnConflict))


@given(busies, policies, waiters, JITTER, st.floats(0, 1e6))
def test_a_duplicate_gives_up_only_after_the_time_it_was_given(
    busy: Busy, policy: Policy, waiter: Waiter, jitter: float, give_up_after: float
) -> None:
    """Not before, and then whatever it waits for."""
    step = next_step(busy, replace(policy, give_up_after=give_up_after), waiter, jitter)
    patient = next_step(busy, replace(policy, give_up_after=None), waiter, jitter)

    if step == Skip(gave_up=True):
        assert waiter.waited >= give_up_after
        assert isinstance(patient, Defer)
    else:
        assert step == patient


# --- how long it waits --------------------------------------------------------------------------------


@given(DEFERRALS, SECONDS | st.just(math.inf), JITTER, st.floats(1, 15))
def test_a_deferral_is_neither_shorter_nor_longer_than_it_may(
    deferrals: int, retry_after: float, jitter: float, longest: float
) -> None:
    """A broker is not to be worn out, and long countdowns meet its visibility timeout."""
    assert SHORTEST_DEFERRAL / 2 <= deferral(deferrals, retry_after, jitter, longest) <= longest
    assert longest <= LONGEST_DEFERRAL == 15


@given(DEFERRALS, SECONDS)
def test_those_who_wait_for_one_key_come_at_different_moments(deferrals: int, retry_after: float) -> None:
    """In step, one of each crowd would get in, and the key stand idle until the next step."""
    delays = {deferral(deferrals, retry_after, jitter) for jitter in (0, 0.25, 0.5, 0.75)}

    assert len(delays) == 4
    assert max(delays) > 1.5 * min(delays)


@given(busies, policies, waiters, JITTER)
def test_a_run_stays_away_no_longer_than_its_broker_lets_it(
    busy: Busy, policy: Policy, waiter: Waiter, jitter: float
) -> None:
    """Whatever it waits for."""
    step = next_step(busy, policy, waiter, jitter)

    assert not isinstance(step, Defer) or step.delay <= waiter.longest


@given(DEFERRALS, SECONDS, JITTER)
def test_a_deferral_is_not_longer_than_the_obstacle(
    deferrals: int, retry_after: float, jitter: float
) -> None:
    """The shortest deferral is, and no other."""
    assert deferral(deferrals, retry_after, jitter) <= max(SHORTEST_DEFERRAL, retry_after)


@given(DEFERRALS, DEFERRALS, SECONDS, JITTER)
def test_a_run_that_has_waited_longer_is_not_asked_more_often(
    one: int, other: int, retry_after: float, jitter: float
) -> None:
    """Deferrals grow, so that a crowd does not wear out the broker."""
    few, many = sorted((one, other))

    assert deferral(few, retry_after, jitter) <= deferral(many, retry_after, jitter)


@given(busies, policies, waiters, JITTER)
def test_a_waiting_slot_outlives_every_deferral_that_may_follow(
    busy: Busy, policy: Policy, waiter: Waiter, jitter: float
) -> None:
    """Whatever the store answers, the slot asked for is still there when the run comes back."""
    step = next_step(busy, policy, waiter, jitter)

    if isinstance(step, Defer):
        assert slot_wait(waiter.deferrals) > step.delay + 5


@given(st.floats(0.1, 1e8))
def test_two_renewals_may_fail_before_a_holder_loses_its_trust(ttl: float) -> None:
    """Three fit into the time for which a lease is trusted, less the margin."""
    assert 2 * renewal_interval(ttl) < ttl - margin(ttl) < 3 * renewal_interval(ttl)
