"""The keeper: what it renews, whom it tells, and that nothing gets lost in its hands."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest

from singleflight.errors import ConfigurationError, LeaseLost
from singleflight.events import Kind, Notify
from singleflight.lease import Lease, Outcome
from singleflight.leases import timer
from singleflight.leases.claiming import Leases
from singleflight.leases.keeper import HANDS_OFF, Keeper
from singleflight.stores.base import INFINITE, Run
from tests.support.core import Core, HandDriven, Line
from tests.support.strike import Struck, StruckSoftly, in_another_thread, strikes
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

TROUBLE = {Kind.LOST, Kind.REGAINED, Kind.RESTORED, Kind.STORE_ERROR}


# --- renewal ------------------------------------------------------------------------------------------


def test_many_leases_are_renewed_in_one_request_every_third_of_their_ttl(core: Core) -> None:
    """A minute of thirty leases with a ttl of 30 s is five or six requests, of thirty renewals each."""
    leases = [core.claim(f"job {n}") for n in range(30)]

    core.pass_time(60)

    assert set(core.store.batches) == {30}
    assert 5 <= len(core.store.batches) <= 7
    assert all(lease.held and core.live(lease) for lease in leases)


def test_leases_of_all_lengths_are_held_for_as_long_as_their_runs_last(core: Core) -> None:
    """Renewals of one lease never make another one late, and nobody is told anything."""
    leases = [core.claim(f"job {n}", ttl=ttl) for n, ttl in enumerate((1.5, 2.0, 5.0, 30.0, 3600.0))]

    core.pass_time(120, step=0.1)

    assert all(lease.held and core.live(lease) for lease in leases)
    assert not TROUBLE & set(core.kinds())


def test_a_renewal_never_gives_more_than_the_ttl(core: Core) -> None:
    """However often it is renewed, a dead holder blocks for one ttl at most."""
    lease = core.claim(ttl=9.0)

    for _ in range(200):
        core.pass_time(1)
        assert core.store.record(lease.key).expires_ms - core.clock() * 1000 <= 9000

    assert lease.expires_in <= 9.0


def test_an_outage_shorter_than_the_ttl_costs_one_warning_and_no_lease(core: Core) -> None:
    """Scenario 23: renewal resumes after a gap, which is reported once however many tries it took."""
    lease = core.claim(ttl=9.0)
    core.pass_time(4)

    core.store.cut()
    core.pass_time(4)
    core.store.mend()
    core.pass_time(30)

    assert lease.held
    assert core.live(lease)
    assert core.kinds() == [Kind.GRANTED, Kind.STORE_ERROR]


def test_the_next_outage_is_reported_again(core: Core) -> None:
    """One warning per gap, not one per process."""
    core.claim(ttl=9.0)

    for _ in range(2):
        core.store.cut()
        core.pass_time(4)
        core.store.mend()
        core.pass_time(4)

    assert core.kinds().count(Kind.STORE_ERROR) == 2


@pytest.mark.parametrize("error", [ConfigurationError("no right"), ValueError("a bug"), KeyError("a bug")])
def test_whatever_a_store_raises_leases_in_other_stores_are_renewed(core: Core, error: Exception) -> None:
    """A store that breaks its promise costs its own leases, not those of others."""
    broken = Line(core.clock)
    lost = Leases(broken, Notify()).claim(core.request("broken"))
    kept = core.claim("sound")

    def strike(_operation: str) -> None:
        raise error

    broken.before = strike
    core.pass_time(60)

    assert isinstance(lost, Lease)
    assert not lost.held
    assert kept.held
    assert core.live(kept)


def test_a_run_that_hangs_is_not_renewed_beyond_max_hold(core: Core) -> None:
    """The lease lapses one ttl after the last renewal; the holder is told why, once."""
    lease = core.claim(ttl=10.0, max_hold=60.0)

    core.pass_time(59)
    assert lease.held

    core.pass_time(61)
    assert not lease.held
    assert not core.live(lease)
    assert [event.reason for event in core.events if event.kind is Kind.LOST] == ["max_hold is over"]


def test_ensure_does_not_renew_beyond_max_hold(core: Core) -> None:
    """A run cannot talk its way past its limit."""
    lease = core.claim(ttl=10.0, max_hold=60.0)
    core.pass_time(60)

    core.pass_time(1)
    with pytest.raises(LeaseLost):
        lease.ensure(8)


# --- what holders are told ----------------------------------------------------------------------------


def test_a_holder_whose_key_was_taken_is_told_once_and_its_end_is_still_recorded(core: Core) -> None:
    """Scenario 18: renewal changes nothing of the other's lease; the lost run's end is remembered."""
    told: list[Lease] = []
    mine = core.claim(ttl=3.0, on_lost=told.append)
    core.clock.advance(4)  # a paused process: nobody renewed
    other = core.claim(ttl=30.0)
    before = core.store.record(mine.key)

    core.pass_time(6)
    assert told == [mine]
    assert core.kinds().count(Kind.LOST) == 1
    assert core.store.record(mine.key).token == other.token
    assert other.fence > mine.fence
    assert core.store.record(mine.key).fence == before.fence

    assert mine.release() is False
    assert Run(mine.run_id, INFINITE, ended=True) in core.store.record(mine.key).runs
    assert core.store.record(mine.key).held
    assert other.held


def test_an_evicted_holder_is_told_at_its_next_renewal(core: Core) -> None:
    """Long before the lease could have lapsed, `held` is false."""
    lease = core.claim(ttl=30.0)
    core.store.inner.evict(lease.key)

    core.pass_time(11)

    assert not lease.held
    assert core.kinds()[-1] is Kind.LOST
    assert "evicted" in core.events[-1].reason


def test_a_lease_that_is_not_confirmed_in_time_is_not_held_and_the_holder_is_told(core: Core) -> None:
    """The trust ends a margin before the store's expiry, whatever the network does."""
    told: list[Lease] = []
    lease = core.claim(ttl=10.0, on_lost=told.append)
    core.store.cut()

    core.pass_time(8.75)
    assert lease.held
    assert not told

    core.pass_time(0.5)
    assert not lease.held
    assert told == [lease]
    assert core.live(lease)  # in the store it lives on: nobody else can have it yet
    core.pass_time(20)
    assert told == [lease]
    assert core.kinds().count(Kind.LOST) == 1


def test_a_lease_that_nobody_took_is_regained_when_the_store_is_back(core: Core) -> None:
    """The fence proves that nobody had it in between; from then on it is trusted and guarded again."""
    told: list[Lease] = []
    lease = core.claim(ttl=5.0, on_lost=told.append)
    core.store.cut()
    core.pass_time(20)

    core.store.mend()
    core.pass_time(1)
    assert lease.held
    assert core.kinds()[-1] is Kind.REGAINED
    assert max(core.keeper.timer.roused) > core.clock()

    core.store.cut()
    core.pass_time(20)
    assert told == [lease, lease]
    assert core.kinds().count(Kind.LOST) == 2


def test_a_lease_that_vanished_from_the_store_is_written_back(core: Core) -> None:
    """After a flush or on an empty replica, the holder restores its record under the same fence."""
    lease = core.claim(ttl=30.0)
    core.store.inner._records.clear()

    core.pass_time(11)

    assert lease.held
    assert core.live(lease)
    assert core.store.record(lease.key).fence == lease.fence
    assert core.kinds() == [Kind.GRANTED, Kind.RESTORED]


def test_a_holder_that_is_told_may_fail_and_the_others_are_told_all_the_same(core: Core) -> None:
    """One broken `on_lost` costs no other holder its warning."""
    told: list[Lease] = []

    def fail(_lease: Lease) -> None:
        raise RuntimeError("broken")

    core.claim("a", ttl=5.0, on_lost=fail)
    second = core.claim("b", ttl=5.0, on_lost=told.append)
    core.store.cut()

    core.pass_time(10)

    assert told == [second]
    assert core.kinds().count(Kind.LOST) == 2


# --- giving back --------------------------------------------------------------------------------------


def test_a_released_lease_is_free_at_once_and_not_renewed_any_more(core: Core) -> None:
    """The next run gets the key, with a larger fence."""
    lease = core.claim()

    assert lease.release() is True
    assert not lease.held
    assert core.claim().fence > lease.fence
    core.pass_time(30)
    assert set(core.store.batches) == {1}


def test_a_lease_is_released_once_however_often_it_is_asked(core: Core) -> None:
    """The first outcome stays."""
    lease = core.claim()

    assert [lease.release(Outcome.FAILED), lease.release(), lease.release()] == [True, False, False]
    assert core.store.calls.count("release") == 1
    assert core.store.record(lease.key).outcome == Outcome.FAILED


def test_a_hundred_threads_that_release_one_lease_release_it_once(core: Core) -> None:
    """Scenario 32: the one that is first gives it back, whichever thread claimed it."""
    lease = core.claim()
    together = threading.Barrier(100)
    answers: list[bool] = []

    def release() -> None:
        together.wait(10)
        answers.append(lease.release())

    threads = [threading.Thread(target=release) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert sorted(answers) == [False] * 99 + [True]
    assert core.store.calls.count("release") == 1


def test_two_leases_of_one_thread_are_given_back_by_others_without_a_mix_up(core: Core) -> None:
    """Scenario 32: nothing about a lease is kept by thread."""
    leases = [core.claim("a"), core.claim("b")]

    threads = [threading.Thread(target=lease.release, args=(Outcome.FAILED,)) for lease in leases[:1]]
    for thread in threads:
        thread.start()
        thread.join(10)

    assert core.store.record(leases[0].key).outcome == Outcome.FAILED
    assert core.live(leases[1])
    assert leases[1].held


def test_a_release_that_fails_on_the_network_is_tried_again_with_the_same_token(core: Core) -> None:
    """Scenario 20: the key is free soon after the store is back, well before the ttl is over."""
    lease = core.claim(ttl=30.0)
    core.store.cut()
    assert lease.release() is False

    core.pass_time(1)
    core.store.mend()
    core.pass_time(1)

    assert not core.live(lease)
    assert core.store.record(lease.key).outcome == Outcome.FINISHED


def test_a_release_whose_reply_was_lost_is_recognised(core: Core) -> None:
    """Trying again is safe: the outcome stays, and the holder after us is left alone."""
    lease = core.claim()
    core.store.deafen()
    assert lease.release() is False
    core.store.mend()
    other = core.claim()

    core.pass_time(3)

    assert core.live(other)
    assert other.held
    assert Kind.LOST not in core.kinds()


def test_a_release_is_given_up_when_the_ttl_is_over_and_the_log_says_so(
    core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    """By then the lease has lapsed; what is lost is the record of the run's end."""
    lease = core.claim(ttl=5.0)
    core.store.cut()
    lease.release()

    core.pass_time(6)
    tries = core.store.calls.count("release")
    core.pass_time(6)

    assert 5 <= tries <= 15
    assert core.store.calls.count("release") == tries
    assert [record.levelname for record in caplog.records if "could not be recorded" in record.message] == [
        "WARNING"
    ]


def test_a_release_that_is_forbidden_is_not_tried_again(core: Core) -> None:
    """A permanent error does not get better by asking again."""
    lease = core.claim()

    def forbid(_operation: str) -> None:
        raise ConfigurationError("no right to write")

    core.store.before = forbid
    assert lease.release() is False
    core.pass_time(10)

    assert core.store.calls.count("release") == 1


@pytest.mark.parametrize("error", [None, ValueError("a bug")])
def test_an_open_release_does_not_hold_up_others(core: Core, error: Exception | None) -> None:
    """Neither those to another store, nor renewals, wait for a store that is away or broken."""
    away = Line(core.clock)
    stuck = Leases(away, Notify()).claim(core.request("stuck"))
    running = core.claim("running", ttl=5.0)
    late = core.claim("late")
    away.cut()
    core.store.cut()
    assert isinstance(stuck, Lease)
    stuck.release()
    late.release()
    core.store.mend()

    def strike(_operation: str) -> None:
        raise error or AssertionError

    if error:
        away.before = strike
    core.pass_time(20)

    assert running.held
    assert not core.live(late)


def test_one_key_that_does_not_answer_does_not_hold_up_the_others_of_its_store(core: Core) -> None:
    """A shard may be away while the rest of a cluster answers: the longest untried release goes first."""
    leases = [core.claim(f"job {n}") for n in range(10)]
    core.store.cut()
    for lease in leases:
        lease.release()
    core.store.mend()
    release = core.store.inner.release
    core.store.inner.release = lambda one: (  # type: ignore[method-assign]
        core.store._refuse("release") if one.key == leases[0].key else release(one)
    )

    core.pass_time(5)

    assert [core.live(lease) for lease in leases] == [True] + [False] * 9


def test_a_store_that_is_away_is_asked_for_one_of_its_releases_at_a_time(core: Core) -> None:
    """Each try may take a second: a hundred of them must not hold up the renewals."""
    leases = [core.claim(f"job {n}") for n in range(100)]
    core.store.cut()
    for lease in leases:
        lease.release()
    before = core.store.calls.count("release")

    core.clock.advance(1)
    core.keeper.look()

    assert core.store.calls.count("release") == before + 1


def test_the_keeper_leaves_a_release_to_the_thread_that_is_at_it(core: Core) -> None:
    """Two at once could take the next holder for a thief; but not for ever: that thread may be struck."""
    lease = core.claim()

    def look_meanwhile(operation: str) -> None:
        core.store.mend()
        core.keeper.look()
        assert core.store.calls.count(operation) == 1
        core.pass_time(HANDS_OFF + 1)
        assert core.store.calls.count(operation) == 2

    core.store.before = look_meanwhile

    assert lease.release() is True


def test_a_lease_whose_owner_has_vanished_is_given_back_as_requeued(core: Core) -> None:
    """Nobody else would ever release it, and the run may come back."""

    class Owner:
        pass

    owner = Owner()
    lease = core.claim(owner=weakref.ref(owner))
    core.pass_time(60)
    assert lease.held

    del owner
    core.pass_time(1)

    assert not lease.held
    assert not core.live(lease)
    assert core.store.record(lease.key).outcome == Outcome.REQUEUED


def test_a_release_that_finds_another_holder_says_that_the_lease_was_lost(core: Core) -> None:
    """Scenarios 19 and 29: a paused process may end before its keeper could find out; one warning."""
    mine = core.claim(ttl=2.0)
    core.clock.advance(3)
    other = core.claim(ttl=2.0)

    assert mine.release() is False

    assert core.kinds().count(Kind.LOST) == 1
    assert core.live(other)
    assert other.held


def test_releases_for_another_process_leave_what_that_process_has_said(core: Core) -> None:
    """The child published a retry; its parent must not turn that into a late copy."""
    retried = core.claim("retried")
    killed = core.claim("killed")
    retried.release(Outcome.RETRYING)

    for lease in (retried, killed):
        request = core.request(lease.task, run_id=lease.run_id, token=lease.token)
        core.leases.disown(request, Outcome.FAILED, grace=1.0)
    core.keeper.look()

    assert core.store.record(retried.key).runs == (Run(retried.run_id, 0, ended=True),)
    assert core.store.record(killed.key).outcome == Outcome.FAILED
    assert core.live(killed)
    core.pass_time(1.25)
    assert not core.live(killed)


# --- exceptions raised into a thread ------------------------------------------------------------------


# Python reports what strikes in a finaliser, and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [Struck, StruckSoftly])
@pytest.mark.timeout(60)
def test_an_exception_anywhere_in_a_release_loses_nothing(error: type[BaseException]) -> None:
    """Wherever it strikes, the lease is given back soon or still held, and asking again is safe."""
    for strike in strikes(error):
        core = Core()
        lease = _claim_with(core)
        with strike:
            lease.release()
        in_another_thread(lambda core=core: core.pass_time(HANDS_OFF + 1))  # type: ignore[misc]
        lease.release()

        record = core.store.record(lease.key)
        assert not record.held, f"struck at {strike}"
        assert record.runs == (Run(lease.run_id, INFINITE, ended=True),)


class Caller:
    """Whoever claims."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# A thread whose start was struck dies of it, and the keeper starts another one.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [Struck, StruckSoftly])
@pytest.mark.timeout(120)
def test_an_exception_anywhere_in_a_claim_leaves_no_lease_behind(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Either the caller has the lease, or the key is soon free again and no lock is left."""
    for strike in strikes(error):
        core = Core()
        core.keeper = Keeper()  # type: ignore[assignment]
        monkeypatch.setattr("singleflight.leases.keeper._Process.keeper", core.keeper)
        core.store = Line(time.time)
        core.leases = Leases(core.store, Notify())
        request = core.request(ttl=1.0)
        lease, caller = None, Caller()
        with strike:
            lease = core.leases.claim(request, owner=weakref.ref(caller))
        del caller  # a grant that did not reach it has nobody else who could release it
        if lease is None:
            until(lambda: not _held(core.store, request.key), 10, "the key to be free")  # noqa: B023
        else:
            assert isinstance(lease, Lease)
            in_another_thread(lease.release)
        in_another_thread(lambda: core.keeper.stop(5))  # noqa: B023


def _held(store: Line, key: str) -> bool:
    look = store.inner.peek(key)
    return look is not None and look.record.held


def _claim_with(core: Core) -> Lease:
    """Claim by hand, so that the lease belongs to this core's keeper."""
    request = core.request()
    from singleflight.lease import Granted, Holder
    from singleflight.leases.claiming import _claim

    holder = Holder(request.task, "host", 1)
    granted = core.store.claim(_claim(request, holder))
    assert isinstance(granted, Granted)
    lease = Lease(core.keeper, granted, request, holder=holder, sent=core.clock())
    core.keeper.hold(lease, core.store, core.leases.notify)
    return lease


# --- the threads --------------------------------------------------------------------------------------


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    """One process with a real keeper and real time."""
    core = Core()
    core.keeper = Keeper()  # type: ignore[assignment]
    core.store = Line(time.time)
    core.leases = Leases(core.store, Notify([core.events.append]))
    monkeypatch.setattr("singleflight.leases.keeper._Process.keeper", core.keeper)
    yield core
    core.keeper.stop(5)


def test_leases_are_renewed_in_the_background(threaded: Core) -> None:
    """A lease of three seconds lives on while its holder does something else."""
    lease = threaded.claim(ttl=3.0)

    until(lambda: threaded.store.calls.count("renew") >= 2, 20, "two renewals")

    assert threaded.store.record(lease.key).token == lease.token


def test_a_holder_is_told_in_time_while_the_store_hangs(threaded: Core) -> None:
    """No timeout bounds every part of a request, so the alarm does not wait for one."""
    answer = threading.Event()
    told = threading.Event()
    threaded.store.before = lambda _operation: answer.wait(60) and None
    lease = None
    try:
        threaded.store.before = lambda operation: (
            None if operation == "claim" else answer.wait(60) and None  # type: ignore[func-returns-value]
        )
        lease = threaded.claim(ttl=1.0, on_lost=lambda _lease: told.set())

        assert told.wait(15), "nobody was told"
        assert not lease.held
        assert threaded.store.calls == ["claim", "renew"], "the store still hangs"
    finally:
        answer.set()


def test_a_short_lease_wakes_a_keeper_that_sleeps_for_long_ones(
    threaded: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new lease does not wait for the next look at the old ones."""
    monkeypatch.setattr(timer, "IDLE", 3600)
    threaded.claim("long", ttl=3600.0)
    until(lambda: threaded.keeper._timer._next < math.inf, 10, "the keeper to fall asleep")
    threaded.claim("short", ttl=1.0)

    until(lambda: threaded.store.calls.count("renew") >= 1, 20, "a renewal")

    assert threaded.store.batches[0] == 1


def test_news_that_comes_while_the_keeper_looks_is_looked_at_before_it_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a lease claimed at the wrong moment would be renewed too late."""
    monkeypatch.setattr(timer, "IDLE", 3600)
    settled, looking, go_on = threading.Event(), threading.Event(), threading.Event()
    looks: list[bool] = []

    def look() -> float:
        looks.append(settled.is_set())
        if looks.count(True) < 2:
            return time.monotonic()  # the next look begins after the moment that it was meant for
        looking.set()
        go_on.wait(20)
        return time.monotonic() + 3600

    keeper = timer.Timer("test", look, time.monotonic)
    keeper.rouse(0)
    settled.set()
    assert looking.wait(20)
    keeper.rouse(time.monotonic() + 10)
    go_on.set()

    until(lambda: looks.count(True) >= 3, 20, "another look")
    keeper.stop(10)


def test_news_of_what_the_next_look_is_in_time_for_leads_to_no_other_look() -> None:
    """With many leases a look takes its time: one more for each that is claimed meanwhile never ends."""
    rung: list[bool] = []

    def look() -> float:
        keeper.ring(time.monotonic() + timer.IDLE)
        rung.append(not keeper._bell.locked())
        return math.inf

    keeper = timer.Timer("test", look, time.monotonic)
    keeper.start()
    until(lambda: rung, 10, "the first look")
    keeper.stop(10)

    assert not rung[0]


def test_the_first_failed_release_of_an_idle_keeper_is_tried_again_soon(threaded: Core) -> None:
    """A keeper with nothing else to do does not sleep through the short life of a release."""
    lease = threaded.claim(ttl=4.0)
    threaded.store.cut()
    lease.release()
    threaded.store.mend()

    until(lambda: not _held(threaded.store, lease.key), 3.9, "the release")

    assert threaded.store.record(lease.key).outcome == Outcome.FINISHED


def test_the_first_struck_release_of_an_idle_keeper_is_tried_again_soon(
    threaded: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit inside the request does not leave the key held for as long as an idle keeper sleeps."""
    monkeypatch.setattr(timer, "IDLE", 60.0)
    lease = threaded.claim(ttl=180.0)
    until(lambda: threaded.keeper._timer._next < math.inf, 10, "the keeper to be asleep")

    def strike(_operation: str) -> None:
        threaded.store.mend()
        raise StruckSoftly

    threaded.store.before = strike
    with pytest.raises(StruckSoftly):
        lease.release()

    until(lambda: not _held(threaded.store, lease.key), 15, "the release")
    assert threaded.store.record(lease.key).outcome == Outcome.FINISHED


@pytest.mark.parametrize("error", [SystemExit, RuntimeError, KeyboardInterrupt])
def test_nothing_that_a_listener_raises_ends_the_threads(
    threaded: Core, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """The other leases still need their keeper."""
    caplog.set_level(logging.CRITICAL, "singleflight")

    def fail(event: object) -> None:
        raise error(str(event))

    threaded.store.inner._records.clear()
    broken = Leases(threaded.store, Notify())
    lease = broken.claim(threaded.request(ttl=3.0))
    broken.notify._listeners = (fail,)
    threaded.store.inner._records.clear()  # the renewal restores it, and reports that

    until(lambda: threaded.store.calls.count("renew") >= 3, 20, "renewals after the first report")

    assert isinstance(lease, Lease)
    assert threaded.keeper._timer._thread is not None
    assert threaded.keeper._timer._thread.is_alive()


def test_a_keeper_that_was_stopped_starts_again_with_the_next_lease(threaded: Core) -> None:
    """Stopping is not for ever, and two threads never do the same work for long."""
    before = set(threading.enumerate())
    for _ in range(3):
        threaded.claim(ttl=1.0).release()
        threaded.keeper.stop(5)
    lease = threaded.claim("again", ttl=1.0)

    until(lambda: threaded.store.calls.count("renew") >= 2, 20, "renewals")

    assert threaded.store.record(lease.key).token == lease.token
    until(lambda: len(set(threading.enumerate()) - before) == 2, 10, "the end of the stopped threads")


def test_stopping_tries_open_releases_once_more(threaded: Core) -> None:
    """What could be given back at the very end is given back."""
    lease = threaded.claim(ttl=60.0)
    threaded.store.cut()
    lease.release()
    threaded.store.mend()

    threaded.keeper.stop(10)

    assert not _held(threaded.store, lease.key)


def test_a_keeper_of_another_process_does_nothing(core: Core) -> None:
    """After a fork, the child has the parent's lease object, but neither renews nor releases it."""
    lease = core.claim(ttl=5.0)
    calls = list(core.store.calls)
    core.keeper._pid += 1

    assert lease.release() is False
    core.clock.advance(2)
    with pytest.raises(LeaseLost):
        lease.ensure(4)
    core.keeper.stop()

    assert core.store.calls == calls


GREENLETS = """
    from gevent import monkey
    monkey.patch_all()
    import logging, time
    from singleflight import try_lease
    from singleflight.stores.memory import MemoryStore
    heard = []
    logging.getLogger("singleflight").addFilter(lambda record: heard.append(record) or True)
    store = MemoryStore()
    leases = [try_lease(store, name, ttl=1) for name in "ab"]
    end = time.monotonic() + 20
    renewed = lambda: store.peek(leases[0].key).record.expires_ms
    first = renewed()
    while renewed() == first and time.monotonic() < end:
        time.sleep(0.05)
    assert renewed() > first, "not renewed while the task yields"
    print([record.levelname for record in heard if "greenlets" in record.getMessage()])
"""


@pytest.mark.timeout(70)
def test_a_process_whose_threads_are_greenlets_is_warned_once_and_renews_while_tasks_yield() -> None:
    """There, work that blocks can lose a lease, and nothing but honesty can be done about it."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GREENLETS)], capture_output=True, text=True, timeout=60
    )

    assert (ended.returncode, ended.stdout.strip()) == (0, "['WARNING']"), ended.stderr


def test_hand_driven_and_threaded_keepers_are_the_same_code() -> None:
    """What the fake clock proves holds for the threads, which call the same function."""
    keeper = HandDriven(time.monotonic)

    assert Keeper().__class__.look is keeper.__class__.look
    assert Keeper()._timer._look.__func__ is Keeper.look  # type: ignore[attr-defined]
