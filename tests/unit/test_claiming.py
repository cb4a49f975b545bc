"""Claiming: what becomes of a lease, of an outage, and of whoever waits."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from singleflight.api import current_lease, holding, lease, try_lease
from singleflight.errors import ConfigurationError, Conflict, LeaseLost, StoreUnavailable
from singleflight.events import Kind, Notify
from singleflight.keys import lease_key
from singleflight.lease import Busy, Lease, Outcome, Reason, monotonic
from singleflight.leases import pacing, waiting
from singleflight.leases.breaker import REST, Breaker
from singleflight.leases.claiming import RETRACT, Leases
from singleflight.leases.keeper import process_keeper
from singleflight.stores.base import Waits
from tests.support.core import Line
from tests.support.strike import Struck, in_another_thread, strikes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.support.core import Core


@pytest.fixture
def clock(core: Core, monkeypatch: pytest.MonkeyPatch) -> Core:
    """Let whoever waits or rests go by the fake clock too: to sleep is to let time pass."""

    def sleep(seconds: float) -> None:
        core.clock.advance(max(seconds, 1e-6))
        core.keeper.look()

    monkeypatch.setattr(waiting, "monotonic", core.clock)
    monkeypatch.setattr(pacing, "monotonic", core.clock)
    core.leases.breaker = Breaker(clock=core.clock)
    monkeypatch.setattr(waiting.time, "sleep", sleep)
    return core


# --- claims -------------------------------------------------------------------------------------------


def test_a_claim_whose_request_got_no_answer_is_taken_back(core: Core) -> None:
    """The reply was lost, so nobody knows that the key is held: it must not stay so for a ttl."""
    request = core.request(ttl=3600.0)
    core.store.deafen()
    with pytest.raises(StoreUnavailable):
        core.leases.claim(request)
    assert core.store.record(request.key).held

    core.store.mend()
    core.pass_time(1)

    assert not core.store.record(request.key).held
    assert core.store.record(request.key).started_ms == 0  # its window is given back as well


def test_taking_back_the_claim_of_a_run_that_may_have_begun_keeps_its_window(core: Core) -> None:
    """A run that comes back may have started before, and no other may start so soon after that."""
    request = core.request(window=3600.0, returning=True)
    core.store.deafen()
    with pytest.raises(StoreUnavailable):
        core.leases.claim(request)
    started = core.store.record(request.key).started_ms
    core.store.mend()
    core.pass_time(1)

    record = core.store.record(request.key)
    assert (record.held, record.started_ms) == (False, started)


def test_a_claim_that_is_interrupted_between_request_and_reply_is_taken_back(core: Core) -> None:
    """A time limit strikes: the caller sees it, and the key is free soon."""
    request = core.request(ttl=3600.0)

    def strike(operation: str) -> None:
        core.store.mend()
        raise KeyboardInterrupt(operation)

    core.store.after = strike
    with pytest.raises(KeyboardInterrupt):
        core.leases.claim(request)
    core.keeper.look()

    assert not core.store.record(request.key).held


def test_claims_that_are_taken_back_do_not_pile_up_during_an_outage(core: Core) -> None:
    """An outage of an hour leaves those of the last minute, however long their ttl."""
    core.store.cut()
    for _ in range(1200):
        with pytest.raises(StoreUnavailable):
            core.leases.claim(core.request(ttl=86400.0), anyway=True)
        core.clock.advance(3)
        core.keeper.look()

    assert len(core.keeper._books) <= RETRACT / 3 + 2


def test_taking_back_a_claim_that_was_refused_touches_nobody_elses_lease(core: Core) -> None:
    """Whoever holds the key has another token."""
    other = core.claim()
    core.store.deafen()
    with pytest.raises(StoreUnavailable):
        core.leases.claim(core.request())

    core.store.mend()
    core.pass_time(2)

    assert other.held
    assert core.live(other)


def test_a_permanent_error_is_raised_and_nothing_is_taken_back(core: Core) -> None:
    """A wrong password does not get better by waiting again."""

    def forbid(_operation: str) -> None:
        raise ConfigurationError("WRONGPASS")

    core.store.before = forbid
    with pytest.raises(ConfigurationError):
        core.leases.claim(core.request())
    core.pass_time(2)

    assert core.store.calls == ["claim"]


def test_a_store_that_failed_is_not_asked_for_five_seconds(clock: Core) -> None:
    """Whoever must not be slow is told at once; the first success ends the rest."""
    clock.store.cut()
    with pytest.raises(StoreUnavailable):
        clock.leases.claim(clock.request())
    clock.store.mend()

    clock.clock.advance(REST - 0.1)
    with pytest.raises(StoreUnavailable, match="within 5 s"):
        clock.leases.claim(clock.request())
    assert clock.store.calls.count("claim") == 1

    clock.clock.advance(0.2)
    assert isinstance(clock.leases.claim(clock.request()), Lease)


def test_a_patient_claim_asks_a_store_that_rests_and_ends_its_rest(clock: Core) -> None:
    """A claim for which somebody waits anyway finds out that the store is back, for all."""
    clock.store.cut()
    with pytest.raises(StoreUnavailable):
        clock.leases.claim(clock.request())
    clock.store.mend()

    assert isinstance(clock.leases.claim(clock.request("a"), anyway=True), Lease)
    assert isinstance(clock.leases.claim(clock.request("b")), Lease)


def test_an_outage_is_reported_once_while_the_store_rests(clock: Core) -> None:
    """Ten patient tries within five seconds are one event."""
    clock.store.cut()
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            clock.leases.claim(clock.request(), anyway=True)
        clock.clock.advance(0.1)

    assert clock.kinds() == [Kind.STORE_ERROR]


def test_while_a_store_rests_its_cause_is_told_first(clock: Core) -> None:
    """What helps is to know why it failed; that it is not asked again yet is the smaller part."""
    clock.store.cut()
    with pytest.raises(StoreUnavailable) as first:
        clock.leases.claim(clock.request())
    with pytest.raises(StoreUnavailable) as resting:
        clock.leases.claim(clock.request())

    assert str(resting.value) == f"{first.value} (not asked again within {REST:g} s)"


def test_a_take_over_from_a_dead_holder_is_reported_as_one(core: Core) -> None:
    """Granted, and somebody died before."""
    dead = core.claim(ttl=2.0)
    del core.keeper._books[dead.token]
    core.clock.advance(3)

    core.claim(ttl=2.0)

    assert core.kinds() == [Kind.GRANTED, Kind.TOOK_OVER]


def test_threads_that_claim_at_once_all_get_the_keeper_that_renews_them(core: Core) -> None:
    """No lease may know a keeper that does not have it on its books."""
    together = threading.Barrier(20)

    def claim(n: int) -> None:
        together.wait(10)
        core.claim(f"job {n}").release()

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert core.store.calls.count("release") == 20


def test_what_became_of_a_refused_claim_is_reported_with_its_obstacle(core: Core) -> None:
    """Whoever reads the log sees who holds the key and when the run comes back."""
    held = core.claim()
    answer = core.leases.claim(core.request())
    assert isinstance(answer, Busy)

    core.leases.tell(Kind.DEFERRED, core.request(), answer, delay=3)

    event = core.events[-1]
    assert (event.kind, event.reason, event.holder, event.delay) == ("deferred", "running", held.holder, 3)


def test_a_reserved_key_is_not_said_to_be_held_by_the_run_before(core: Core) -> None:
    """That one has ended: whoever looks for it would look in vain."""
    before = core.claim()
    core.leases.claim(core.request(run_id="next", wait=60.0, waits=Waits.FIRST))
    before.release()
    answer = core.leases.claim(core.request())
    assert isinstance(answer, Busy)
    assert (answer.reason, answer.ahead) == (Reason.RESERVED, "next")

    core.leases.tell(Kind.DEFERRED, core.request(), answer, delay=3)

    event = core.events[-1]
    assert (event.reason, event.holder, event.age) == ("reserved", None, None)
    assert str(answer).startswith("reserved: run next, free in at most ")


# --- try_lease ----------------------------------------------------------------------------------------


def test_the_same_run_is_granted_once(core: Core) -> None:
    """While it runs it is SAME_RUN, and once it has ended it never starts again."""
    first = try_lease(core.store, "nightly", run_id="2026-11-29")
    second = try_lease(core.store, "nightly", run_id="2026-11-29")
    assert isinstance(first, Lease)
    assert isinstance(second, Busy)
    assert second.reason is Reason.SAME_RUN

    first.release()
    third = try_lease(core.store, "nightly", run_id="2026-11-29")
    assert isinstance(third, Busy)
    assert third.reason is Reason.FINISHED


def test_a_run_that_ended_long_ago_does_not_start_again_after_others(core: Core) -> None:
    """It is remembered beside the runs that came after it."""
    for day in range(20):
        answer = try_lease(core.store, "nightly", run_id=f"day {day}")
        assert isinstance(answer, Lease)
        answer.release()

    for day in range(20):
        answer = try_lease(core.store, "nightly", run_id=f"day {day}")
        assert isinstance(answer, Busy)
        assert answer.reason is Reason.FINISHED


def test_a_second_start_within_the_window_is_refused(core: Core) -> None:
    """Scenario 35: the window outlives the release, and is counted from the start."""
    first = try_lease(core.store, "nightly", window=60)
    assert isinstance(first, Lease)
    core.clock.advance(1)
    first.release()

    answers = []
    for seconds in (4, 54, 2):
        core.clock.advance(seconds)
        answers.append(try_lease(core.store, "nightly", window=60))

    assert [getattr(answer, "reason", None) for answer in answers] == [Reason.WINDOW, Reason.WINDOW, None]


def test_a_run_longer_than_its_window_still_keeps_others_out(core: Core) -> None:
    """Scenario 36: +7 s is a duplicate because the run lasts, +13 s runs."""
    first = try_lease(core.store, "sync", window=5)
    assert isinstance(first, Lease)
    core.pass_time(7)
    second = try_lease(core.store, "sync", window=5)
    core.pass_time(5)
    first.release()
    core.pass_time(1)

    assert isinstance(second, Busy)
    assert second.reason is Reason.RUNNING
    assert isinstance(try_lease(core.store, "sync", window=5), Lease)


@pytest.mark.parametrize("ttl", [90, 90.0, timedelta(seconds=90)])
def test_durations_are_seconds_or_a_timedelta(core: Core, ttl: Any) -> None:
    """All spellings mean the same."""
    answer = try_lease(core.store, "nightly", ttl=ttl, window=timedelta(minutes=1))

    assert isinstance(answer, Lease)
    assert answer.ttl == 90.0
    assert core.store.record(answer.key).opens_ms - core.store.record(answer.key).started_ms == 60_000


@pytest.mark.parametrize(
    ("options", "names"),
    [({"ttl": 0}, "ttl"), ({"ttl": "30"}, "ttl"), ({"ttl": float("nan")}, "ttl"), ({"window": -1}, "window")],
)
def test_a_wrong_duration_is_refused_by_name_and_nothing_is_asked(
    core: Core, options: dict[str, Any], names: str
) -> None:
    """Before the store has seen anything."""
    with pytest.raises(ConfigurationError, match=rf"^{names}="):
        try_lease(core.store, "nightly", **options)

    assert core.store.calls == []


@pytest.mark.parametrize("store", ["redis", "localhost:6379", ""])
def test_what_is_no_url_is_refused_with_an_example(store: str) -> None:
    """The message shows what a URL looks like."""
    with pytest.raises(ConfigurationError, match="redis://host:6379/0"):
        try_lease(store, "nightly")


def test_a_store_given_by_url_is_opened_once(core: Core) -> None:
    """A loop of claims does not connect each time."""
    url = f"memory://{id(core)}"

    first, second = try_lease(url, "a"), try_lease(url, "a")

    assert isinstance(first, Lease)
    assert isinstance(second, Busy)
    assert waiting.leases_of(url) is waiting.leases_of(url)


# --- with lease(...) ----------------------------------------------------------------------------------


def test_a_block_holds_its_lease_and_gives_it_back(core: Core) -> None:
    """Inside, it is the current lease; afterwards, the run is finished."""
    with lease(core.store, "nightly") as held:
        assert current_lease() is held
        assert core.live(held)

    assert current_lease() is None
    assert core.store.record(held.key).outcome == Outcome.FINISHED


def test_a_block_that_raises_has_failed(core: Core) -> None:
    """The error goes on its way."""
    with pytest.raises(ZeroDivisionError), lease(core.store, "nightly") as held:
        _ = 1 / 0

    assert core.store.record(held.key).outcome == Outcome.FAILED


def test_blocks_nest_and_each_sees_its_own_lease(core: Core) -> None:
    """Leaving the inner one brings the outer one back."""
    with lease(core.store, "outer") as outer:
        with lease(core.store, "inner") as inner:
            assert current_lease() is inner
        assert current_lease() is outer
        with holding(None):
            assert current_lease() is None
        assert current_lease() is outer


def test_another_thread_does_not_see_the_current_lease(core: Core) -> None:
    """What one thread holds, another does not run under."""
    seen: list[object] = []
    with lease(core.store, "nightly"):
        thread = threading.Thread(target=lambda: seen.append(current_lease()))
        thread.start()
        thread.join(10)

    assert seen == [None]


def test_without_waiting_a_taken_lease_is_a_conflict_that_says_who_has_it(clock: Core) -> None:
    """One try, no sleep."""
    holder = clock.claim("nightly")
    before = clock.clock()
    name = "nightly"

    with (
        pytest.raises(Conflict, match=rf"nightly is taken \(running: run {holder.run_id} by nightly on"),
        lease(clock.store, name, prefix="t"),
    ):
        pytest.fail("entered")

    assert clock.clock() == before


def test_waiting_ends_when_the_lease_is_free(clock: Core) -> None:
    """Not much later than the holder gives it back, although others are asked only now and then."""
    holder = clock.claim("nightly")
    sleep = waiting.time.sleep
    start = clock.clock()

    def release_after_ten_seconds(seconds: float) -> None:
        sleep(seconds)
        if clock.clock() - start >= 10:
            holder.release()

    waiting.time.sleep = release_after_ten_seconds  # type: ignore[assignment]
    with lease(clock.store, "nightly", prefix="t", wait=60):
        waited = clock.clock() - start

    assert 10 <= waited <= 11


@pytest.mark.parametrize("wait", [3, 3.0, timedelta(seconds=3)])
def test_waiting_ends_in_a_conflict_when_the_time_is_over(clock: Core, wait: Any) -> None:
    """Neither earlier, nor a poll later; the last try is at the very end."""
    clock.claim("nightly")
    start = clock.clock()

    with pytest.raises(Conflict), lease(clock.store, "nightly", prefix="t", wait=wait):
        pytest.fail("entered")

    assert clock.clock() - start == pytest.approx(3, abs=0.001)


def test_waiting_for_a_run_that_has_ended_ends_at_once(clock: Core) -> None:
    """It will never be granted again, so even `wait=None` must not hang."""
    with lease(clock.store, "nightly", run_id="r"):
        pass

    with pytest.raises(Conflict, match="finished"), lease(clock.store, "nightly", run_id="r", wait=None):
        pytest.fail("entered")


def test_an_outage_while_waiting_is_waited_out(clock: Core) -> None:
    """A leader stays a candidate through a restart of the store."""
    clock.store.cut()
    sleep, start = waiting.time.sleep, clock.clock()

    def mend_after_a_minute(seconds: float) -> None:
        sleep(seconds)
        if clock.clock() - start >= 60:
            clock.store.mend()

    waiting.time.sleep = mend_after_a_minute  # type: ignore[assignment]
    with lease(clock.store, "leader", wait=None) as held:
        assert clock.live(held)

    assert 60 <= clock.clock() - start <= 62


def test_an_outage_longer_than_the_wait_is_raised_as_an_outage(clock: Core) -> None:
    """It is never taken for a conflict."""
    clock.store.cut()

    with pytest.raises(StoreUnavailable), lease(clock.store, "nightly", wait=2):
        pytest.fail("entered")


def test_lost_replies_while_waiting_do_not_make_the_waiter_its_own_obstacle(clock: Core) -> None:
    """What an unheard grant took is given back, so the next try gets the key long before its ttl."""
    clock.store.deafen()
    sleep, start = waiting.time.sleep, clock.clock()

    def mend_after_a_second(seconds: float) -> None:
        sleep(seconds)
        if clock.clock() - start >= 1:
            clock.store.mend()

    waiting.time.sleep = mend_after_a_second  # type: ignore[assignment]
    with lease(clock.store, "nightly", ttl=600, wait=60):
        waited = clock.clock() - start

    assert waited <= 5


@pytest.mark.parametrize("wait", [-1, float("nan"), "5", True, timedelta(seconds=-1)])
def test_a_wait_that_is_no_duration_is_refused(core: Core, wait: Any) -> None:
    """The message names it and says what to write."""
    with pytest.raises(ConfigurationError, match=r"^wait=.*None"), lease(core.store, "nightly", wait=wait):
        pytest.fail("entered")


def test_a_lost_block_is_told_by_check(core: Core) -> None:
    """A leader asks before each thing that only a leader may do."""
    with lease(core.store, "leader", ttl=5) as held:
        held.check()
        core.store.inner.evict(held.key)
        core.pass_time(3)

        with pytest.raises(LeaseLost):
            held.check()


# Python reports what strikes in a finaliser, and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_anywhere_on_the_way_into_and_out_of_a_block_leaves_no_lease_behind(core: Core) -> None:
    """Wherever it strikes, the key is soon free: nobody else would ever give the lease back."""

    def enter_and_leave(name: str, strike: AbstractContextManager[object]) -> None:
        with strike, lease(core.store, name, ttl=1.0, prefix="t"):
            pass

    for number, strike in enumerate(strikes(Struck)):
        name = f"job {number}"
        # In a context of its own: what is struck last may be the line that forgets the current lease.
        copy_context().run(enter_and_leave, name, strike)
        in_another_thread(lambda: core.pass_time(3))

        look = core.store.inner.peek(lease_key("t", name))
        assert look is None or not look.record.held, f"struck at place {number + 1}"


# --- processes ----------------------------------------------------------------------------------------

FORK = """
    import os, sys, threading, time
    from singleflight import current_lease, lease, try_lease
    from singleflight.leases.claiming import Leases
    from singleflight.leases.keeper import process_keeper
    from singleflight.lease import Lease
    from singleflight.stores.memory import MemoryStore

    def threads():
        return sorted(t.name for t in threading.enumerate() if t.name.startswith("singleflight"))

    def until(condition):
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    assert threads() == [], "no thread before the first lease"
    store = MemoryStore()
    mine = try_lease(store, "parent", ttl=1)
    until(lambda: threads() == ["singleflight-clock", "singleflight-keeper"])
    keeper = process_keeper()
    expires = lambda lease: store.peek(lease.key).record.expires_ms

    child = os.fork()
    if child == 0:
        try:
            assert threads() == []
            assert process_keeper() is not keeper
            before = expires(mine)
            assert mine.release() is False
            assert store.peek(mine.key).record.held, "a child does not release its parent's lease"
            own = try_lease(store, "child", ttl=1)
            assert isinstance(own, Lease)
            first = expires(own)
            until(lambda: expires(own) > first)  # the child's own keeper renews it
            assert expires(mine) == before, "a child does not renew its parent's lease"
            assert own.release() is True
            with lease(store, "another"):
                pass
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    seen = expires(mine)
    until(lambda: expires(mine) > seen)  # the parent's keeper goes on
    assert mine.held and mine.release() is True
    print("fine")
"""

EXIT = """
    import time
    from singleflight import try_lease
    from tests.support.core import Line

    store = Line(time.time)
    kept, given = try_lease(store, "kept"), try_lease(store, "given")
    store.cut()
    given.release()
    release = store.inner.release
    def last(one):
        print("released", one.outcome, flush=True)
        return release(one)
    store.inner.release = last
    store.mend()
"""


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.timeout(70)
def test_a_forked_child_leaves_its_parents_leases_alone_and_has_a_keeper_of_its_own() -> None:
    """Scenario 30: the parent's keeper goes on, the child's starts with the child's first lease."""
    ended = _run(FORK)

    assert (ended.returncode, ended.stdout.strip()) == (0, "fine"), ended.stderr


@pytest.mark.timeout(70)
def test_a_process_that_ends_tries_its_open_releases_and_is_not_held_up() -> None:
    """A release that failed a moment before is tried once more; what is held lapses by its ttl."""
    ended = _run(EXIT)

    assert (ended.returncode, ended.stdout.strip()) == (0, "released finished"), ended.stderr


@pytest.mark.timeout(70)
def test_a_process_whose_store_hangs_ends_all_the_same() -> None:
    """The keeper's threads are daemons, and the last try has a second."""
    ended = _run(
        """
        import threading, time
        from singleflight import try_lease
        from tests.support.core import Line
        store = Line(time.time)
        lease = try_lease(store, "stuck", ttl=1)
        entered = threading.Event()
        def hang(operation):
            entered.set()
            threading.Event().wait(600)
        store.before = hang
        assert entered.wait(20)
        print("ending", flush=True)
        """
    )

    assert (ended.returncode, ended.stdout.strip()) == (0, "ending"), ended.stderr


def test_this_process_has_one_keeper() -> None:
    """However often one asks."""
    assert process_keeper() is process_keeper()


def test_leases_without_listeners_only_log() -> None:
    """The log is always told; further listeners come after it."""
    assert len(Leases(Line(monotonic)).notify._listeners) == 1
    assert len(Notify([print])._listeners) == 2
