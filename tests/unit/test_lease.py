"""What a lease says of itself, and the small values around it."""

from __future__ import annotations

import gc
import json
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight import Lease, lease, peek, try_lease
from singleflight.errors import ConfigurationError, LeaseLost
from singleflight.lease import Busy, Holder, Outcome, Reason, margin, monotonic
from singleflight.leases.keeper import process_keeper
from singleflight.leases.renewing import Kept
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.core import Core

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


# --- trust --------------------------------------------------------------------------------------------


def test_a_lease_is_trusted_until_a_margin_before_the_store_lets_it_go(core: Core) -> None:
    """Counted from the moment before the request went out, not from the reply."""
    core.store.before = lambda _operation: core.clock.advance(2)  # the request is two seconds on its way
    start = core.clock()
    lease = core.claim(ttl=30.0)
    core.store.mend()

    assert lease.trusted_until == pytest.approx(start + 30 - 1)
    assert lease.expires_in == pytest.approx(27)
    assert core.store.record(lease.key).expires_ms / 1000 > lease.trusted_until


def test_a_lease_is_held_up_to_its_last_trusted_moment(core: Core) -> None:
    """And not at that moment."""
    lease = core.claim(ttl=5.0)

    core.clock.advance(4.49)
    assert lease.held
    lease.check()

    core.clock.advance(0.01)
    assert not lease.held
    assert lease.expires_in == 0.0


def test_check_asks_no_store(core: Core) -> None:
    """It can stand in the innermost loop."""
    lease = core.claim()
    calls = list(core.store.calls)

    lease.check()
    assert lease.held
    assert lease.expires_in > 0

    assert core.store.calls == calls


def test_a_lost_lease_says_what_to_do(core: Core) -> None:
    """Who, what, which fence, and that another run may have started."""
    lease = core.claim(ttl=5.0)
    core.clock.advance(5)

    with pytest.raises(LeaseLost, match=rf"{lease.run_id} no longer holds .*fence {lease.fence}.*stop"):
        lease.check()


def test_a_released_lease_is_not_held(core: Core) -> None:
    """Its time in the store has ended, whatever was left of it."""
    lease = core.claim()
    lease.release()

    assert not lease.held
    assert lease.expires_in == 0.0
    with pytest.raises(LeaseLost):
        lease.check()


# --- ensure -------------------------------------------------------------------------------------------


def test_ensure_asks_the_store_only_if_too_little_is_left(core: Core) -> None:
    """Enough is left: no request. Too little: one renewal, now."""
    lease = core.claim(ttl=30.0)
    core.clock.advance(5)

    lease.ensure(20)
    assert "renew" not in core.store.calls

    lease.ensure(25)
    assert core.store.calls.count("renew") == 1
    assert lease.expires_in >= 25


def test_ensure_raises_if_the_time_cannot_be_had(core: Core) -> None:
    """The store is away: whoever needs so long must not begin."""
    lease = core.claim(ttl=30.0)
    core.clock.advance(10)
    core.store.cut()

    with pytest.raises(LeaseLost, match="could not be renewed for 25 s"):
        lease.ensure(25)

    assert core.store.calls.count("renew") == 1  # each costs the store's timeout
    assert lease.held  # for what is left
    lease.ensure(15)


def test_ensure_raises_if_the_lease_went_to_somebody_else(core: Core) -> None:
    """It is not held from then on."""
    lease = core.claim(ttl=30.0)
    core.clock.advance(10)
    core.store.inner.evict(lease.key)

    with pytest.raises(LeaseLost):
        lease.ensure(25)

    assert not lease.held


@pytest.mark.parametrize("seconds", [28.1, 29, 29.5, 31, -1, float("nan")])
def test_ensure_refuses_what_no_renewal_could_give(core: Core, seconds: float) -> None:
    """It is a mistake in the program, the remedy is a longer ttl, and the lease is as it was."""
    lease = core.claim(ttl=30.0)

    with pytest.raises(ConfigurationError, match=r"from 0 to 28 s.*ttl=30\.0.*longer ttl"):
        lease.ensure(seconds)

    assert lease.held
    assert "renew" not in core.store.calls


@pytest.mark.parametrize("ttl", [1.0, 5.0, 30.0, 3600.0])
def test_ensure_gives_what_it_accepts(core: Core, ttl: float) -> None:
    """A renewal may take up to a margin; one that took longer is followed by another."""
    lease = core.claim(ttl=ttl)
    most = ttl - 2 * margin(ttl)
    delays = [margin(ttl) * 0.9, margin(ttl) * 1.5, margin(ttl) * 0.9]
    core.store.before = lambda _operation: core.clock.advance(delays.pop(0))

    for _ in range(2):
        core.clock.advance(ttl / 3)
        lease.ensure(most)
        assert lease.expires_in >= most

    assert delays == []


def test_ensure_does_not_call_a_lease_lost_that_is_held(core: Core) -> None:
    """Where each answer takes too long, the message says for how long it is held."""
    lease = core.claim(ttl=30.0)
    core.clock.advance(10)
    core.store.before = lambda _operation: core.clock.advance(3)

    with pytest.raises(LeaseLost, match=r"could not be renewed for 28 s more.*is held for 26\.0 s"):
        lease.ensure(28)

    assert lease.held


# --- small values -------------------------------------------------------------------------------------


@given(st.floats(0.001, 1e8))
def test_the_margin_is_positive_and_leaves_most_of_the_ttl(ttl: float) -> None:
    """A tenth, at most a second."""
    assert 0 < margin(ttl) <= min(1.0, ttl / 10)


@given(TEXT, TEXT, st.integers(0, 2**31))
def test_a_holder_comes_out_of_the_store_as_it_went_in(task: str, host: str, pid: int) -> None:
    """Whatever the names look like; of very long ones the beginning."""
    known = Holder(task[:200], host[:200], pid)

    assert Holder.decode(Holder(task, host, pid).encode()) == known
    assert Holder.decode(Holder(task * 100, host * 100, pid).encode()).task == (task * 100)[:200]


@given(TEXT | st.sampled_from(["[]", "{}", "null", "3", '["a"]', '["a","b","c"]', "[1,2,3,4]"]))
def test_a_foreign_holder_is_none(text: str) -> None:
    """Other tools may write what they like; it is only shown to people."""
    holder = Holder.decode(text)

    assert holder is None or json.loads(text)


def test_a_refusal_reads_well() -> None:
    """Why, who, and for how long at most."""
    busy = Busy(Reason.RUNNING, "r1", 12.34, holder=Holder("shop.report", "web-1", 7))

    assert str(busy) == "running: run r1 by shop.report on web-1, pid 7, free in 12.3 s if it has died"
    assert str(Busy(Reason.WINDOW, "", 3.0)) == "window: run (none), next start in 3.0 s"
    assert str(Busy(Reason.FINISHED, "r1", 0.0)) == "finished: run r1"


def test_only_finished_failed_and_cancelled_are_final() -> None:
    """A retry and a requeued message come back."""
    assert {outcome for outcome in Outcome if outcome.final} == {
        Outcome.FINISHED,
        Outcome.FAILED,
        Outcome.CANCELLED,
    }


def test_a_lease_shows_no_token(core: Core) -> None:
    """Whoever reads a traceback cannot release it."""
    lease = core.claim()

    assert lease.token not in repr(lease)
    assert lease.key in repr(lease)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has a clock that counts suspend")
def test_the_clock_goes_on_while_the_machine_sleeps() -> None:
    """Plain monotonic time stands still then, and a woken holder would trust a dead lease."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = monotonic()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before <= now <= after


# --- leases that nobody looks after -------------------------------------------------------------------


def test_a_lease_that_is_thrown_away_is_given_back_only_by_its_block() -> None:
    """As the page on plain code says: `lease` knows its block, `try_lease` cannot know who still works."""
    url = "memory://thrown-away"
    block = lease(url, "block", ttl=3)
    block.__enter__()
    asked = try_lease(url, "asked")
    assert isinstance(asked, Lease)
    token = asked.token
    assert peek(url, "block")

    del block, asked
    gc.collect()

    until(lambda: not peek(url, "block"), 10, "the end of the block's lease")
    assert peek(url, "asked")
    kept = process_keeper()._books[token]
    assert isinstance(kept, Kept)
    kept.lease.release()
