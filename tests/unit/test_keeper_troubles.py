"""The keeper under trouble: what one store, holder, listener or log does costs nobody else a lease."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

from singleflight.errors import StoreUnavailable
from singleflight.events import Event, Kind, Notify
from singleflight.lease import Lease
from singleflight.leases.abort import Abort
from singleflight.leases.claiming import Leases
from singleflight.leases.errands import BATCH_SIZE
from singleflight.leases.keeper import Keeper
from tests.support.core import Core, Line
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from singleflight.stores.base import Renewal, Renewed


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


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """Return what keeps something from going on; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def _is_renewed(core: Core, lease: Lease) -> bool:
    """Wait for three renewals of a lease: they come all the time, whatever the others are busy with."""
    for _ in range(3):
        before = core.store.record(lease.key).expires_ms
        until(lambda: core.store.record(lease.key).expires_ms > before, 15, f"a renewal of {lease.task}")  # noqa: B023
    return True


# --- stores -------------------------------------------------------------------------------------------


def test_a_store_that_hangs_costs_its_own_leases_only(threaded: Core, hang: threading.Event) -> None:
    """Nobody else's renewal waits for its answer, nor for those of seven more such stores."""
    others = [Line(time.time) for _ in range(8)]
    for store in others:
        lease = Leases(store, Notify()).claim(threaded.request(ttl=1.0))
        assert isinstance(lease, Lease)
        store.before = lambda _operation: hang.wait(60) and None  # type: ignore[func-returns-value]
    healthy = threaded.claim("healthy", ttl=1.0)

    assert _is_renewed(threaded, healthy)


def test_late_releases_delay_no_renewal(threaded: Core) -> None:
    """After an outage many releases are late, and take longer than the ttl of a lease that is held."""
    late = [threaded.claim(f"late {n}", ttl=30.0) for n in range(100)]
    held = threaded.claim("held", ttl=1.5)
    threaded.store.cut()
    for lease in late:
        lease.release()

    slow = threading.Event()
    threaded.store.before = lambda operation: slow.wait(1) and None if operation == "release" else None  # type: ignore[func-returns-value]
    assert _is_renewed(threaded, held)
    assert any(threaded.live(lease) for lease in late)
    slow.set()
    until(lambda: not any(threaded.live(lease) for lease in late), 10, "the late releases")


def test_a_store_whose_release_hangs_renews_all_the_same(threaded: Core, hang: threading.Event) -> None:
    """One key may be in trouble, on a node that is away, while the others are fine."""
    stuck, held = threaded.claim("stuck", ttl=30.0), threaded.claim("held", ttl=1.0)
    threaded.store.cut()
    stuck.release()
    threaded.store.before = lambda operation: (
        hang.wait(60) and None if operation == "release" else None  # type: ignore[func-returns-value]
    )

    until(lambda: threaded.store.calls.count("release") == 2, 10, "the keeper's own try")
    assert _is_renewed(threaded, held)


def test_many_renewals_go_out_in_batches_each_with_its_own_timeout(core: Core) -> None:
    """One request for all of them would take longer than any request may."""
    leases = [core.claim(f"job {n}") for n in range(4 * BATCH_SIZE + 1)]

    core.pass_time(30)

    assert max(core.store.batches) == BATCH_SIZE
    assert sum(core.store.batches) <= 3 * len(leases)
    assert all(lease.held and core.live(lease) for lease in leases)


def test_the_most_urgent_of_many_renewals_goes_first(core: Core) -> None:
    """A short lease is not made late by thousands of long ones that fall due with it."""
    for n in range(3 * BATCH_SIZE):
        core.claim(f"long {n}", ttl=30.0)
    core.clock.advance(9.5)
    short = core.claim("short", ttl=1.5)
    core.clock.advance(0.5)
    renewed: list[str] = []
    renew = core.store.inner.renew

    def note(renewals: Sequence[Renewal]) -> Sequence[Renewed]:
        renewed.extend(one.key for one in renewals)
        return renew(renewals)

    core.store.inner.renew = note  # type: ignore[method-assign]
    core.keeper.look()

    assert short.key in renewed[:BATCH_SIZE]


def test_leases_that_fall_due_one_after_the_other_are_renewed_many_at_a_time(core: Core) -> None:
    """While some are renewed, the next becomes nearly due: it waits, or each would be a request."""
    for n in range(100):
        core.claim(f"job {n}", ttl=30.0)
        core.clock.advance(0.1)
    core.store.before = lambda operation: core.clock.advance(0.1) if operation == "renew" else None

    core.keeper.look()

    assert core.store.batches == [11]


def test_a_store_that_is_away_is_asked_for_two_batches_only(core: Core) -> None:
    """Each may take a timeout: as many as there are leases would go on for minutes."""
    for n in range(5 * BATCH_SIZE):
        core.claim(f"job {n}")
    core.store.cut()

    core.clock.advance(10)
    core.keeper.look()

    assert core.store.calls.count("renew") == 2


def test_leases_that_get_no_answer_do_not_keep_others_of_their_store_waiting(core: Core) -> None:
    """A node of a cluster is away with more leases than two batches hold: the others are renewed first."""
    away = {core.claim(f"away {n}").key for n in range(3 * BATCH_SIZE)}
    healthy = [core.claim(f"healthy {n}") for n in range(BATCH_SIZE)]
    renew = core.store.inner.renew

    def answer(renewals: Sequence[Renewal]) -> Sequence[Renewed]:
        if all(one.key in away for one in renewals):
            core.store._refuse("renew")
        found = iter(renew([one for one in renewals if one.key not in away]))
        return [StoreUnavailable("away") if one.key in away else next(found) for one in renewals]  # type: ignore[misc]

    core.store.inner.renew = answer  # type: ignore[method-assign]
    core.pass_time(60)

    assert all(lease.held for lease in healthy)


def test_a_store_that_answers_too_little_is_asked_again_and_hinders_nobody(core: Core) -> None:
    """A store that breaks its promise costs no busy loop."""
    core.claim("broken")
    core.store.inner.renew = lambda _renewals: []  # type: ignore[method-assign]

    core.pass_time(12)

    assert core.store.calls.count("renew") <= 6


# --- holders and listeners ----------------------------------------------------------------------------


def test_a_slow_holder_that_is_told_delays_no_renewal_and_no_other_holder(
    threaded: Core, hang: threading.Event
) -> None:
    """`on_lost` is the user's code; it may take its time."""
    told = threading.Event()
    lost = [
        threaded.claim("slow", ttl=1.0, on_lost=lambda _lease: hang.wait(60)),
        threaded.claim("quick", ttl=1.0, on_lost=lambda _lease: told.set()),
    ]
    held = threaded.claim("held", ttl=1.0)
    for lease in lost:
        threaded.store.inner.evict(lease.key)

    assert told.wait(10), "the other holder was not told"
    assert _is_renewed(threaded, held)


def test_a_slow_listener_delays_no_renewal_and_no_abort(threaded: Core, hang: threading.Event) -> None:
    """Listeners of a log, a monitor or a signal may hang, and hear everything in its order."""
    slow = Leases(threaded.store, Notify([lambda event: event.kind is Kind.LOST and hang.wait(60)]))
    lost = [slow.claim(threaded.request(name, ttl=1.0), on_lost=None) for name in "ab"]
    aborts = _Struck()
    lost.append(slow.claim(threaded.request("c", ttl=1.0), on_lost=aborts))
    held = threaded.claim("held", ttl=1.0)
    for lease in lost:
        assert isinstance(lease, Lease)
        threaded.store.inner.evict(lease.key)

    until(lambda: aborts.count, 10, "the abort")
    assert _is_renewed(threaded, held)


class _Struck(Abort):
    """An abort that is counted instead of raised."""

    count = 0

    def __call__(self, _lease: Lease) -> None:
        self.count += 1


def test_an_abort_does_not_wait_for_holders_that_hang(threaded: Core, hang: threading.Event) -> None:
    """However many callbacks hang, ``on_lost="abort"`` is never silent."""
    hung = [threaded.claim(f"{n}", ttl=30.0, on_lost=lambda _lease: hang.wait(60)) for n in range(100)]
    for lease in hung:
        threaded.keeper.lose(threaded.keeper._books[lease.token], "a test says so")
    aborts = _Struck()
    lease = threaded.claim("aborted", ttl=1.0, on_lost=aborts)
    threaded.store.inner.evict(lease.key)

    until(lambda: aborts.count, 10, "the abort")


def test_what_a_listener_raises_at_a_lease_written_back_does_not_mute_its_next_loss(core: Core) -> None:
    """Each loss is told, whatever the listeners made of what came before."""
    told: list[Lease] = []

    def fail(event: Event) -> None:
        if event.kind is Kind.RESTORED:
            raise SystemExit

    core.leases.notify._listeners = (fail,)
    lease = core.claim(ttl=5.0, on_lost=told.append)
    core.store.cut()
    core.pass_time(10)
    core.store.inner._records.clear()
    core.store.mend()
    core.pass_time(10)
    assert lease.held

    core.store.cut()
    core.pass_time(10)
    assert told == [lease, lease]


# --- the log ------------------------------------------------------------------------------------------


@pytest.fixture
def broken_log() -> Iterator[None]:
    """Let every line to the log fail, as a filter does that reads what its thread does not have."""

    def fail(_record: logging.LogRecord) -> bool:
        raise AttributeError("'_thread._local' object has no attribute 'request_id'")

    log = logging.getLogger("singleflight")
    log.addFilter(fail)
    yield
    log.removeFilter(fail)


@pytest.mark.usefixtures("broken_log")
def test_a_log_that_fails_mutes_no_loss_and_ends_no_thread(
    threaded: Core, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every holder is told of its loss, and what the log did not take is said on stderr."""
    told: list[str] = []
    for name in ("first", "second"):
        lease = threaded.claim(name, ttl=1.0, on_lost=lambda lost: told.append(lost.task))
        held = threaded.claim(f"held beside {name}", ttl=1.0)
        threaded.store.inner.evict(lease.key)
        until(lambda: name in told, 10, f"the loss of {name}")  # noqa: B023
        assert _is_renewed(threaded, held)
        held.release()

    said = capsys.readouterr().err
    assert "lost" in said
    assert "request_id" in said


@pytest.mark.usefixtures("broken_log")
def test_a_log_that_fails_breaks_no_task(core: Core) -> None:
    """Neither what claims nor what gives back raises what the user's log raises."""
    lease = core.claim(ttl=5.0)
    core.store.cut()
    assert lease.release() is False
    core.pass_time(10)


class _Limit(Exception):
    """As a soft time limit is."""


def test_a_time_limit_that_strikes_in_a_listener_ends_the_task(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard around listeners is for what they raise themselves."""
    monkeypatch.setattr("singleflight.log.STRIKES", [_Limit])

    def strike(_event: Event) -> None:
        raise _Limit

    core.leases.notify._listeners = (strike,)
    with pytest.raises(_Limit):
        core.claim()
