"""What one who waits for a lease asks, and how long it pauses, whoever sleeps for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from singleflight.errors import ConfigurationError, Conflict, StoreUnavailable
from singleflight.lease import Busy, Reason
from singleflight.leases import pacing
from singleflight.leases.claiming import Leases, Request
from singleflight.leases.pacing import LISTENER_SLOT, LONGEST, LONGEST_WAIT, RESERVES, SHORTEST, SLOT, Wait
from singleflight.stores.base import Waits
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

RUNNING = Busy(Reason.RUNNING, "other", 30.0)
AWAY = StoreUnavailable("no answer")


class Line(MemoryStore):
    """A store that tells those who wait, if they may listen."""

    trouble: Exception | None = None

    def listen(self, *_: object, **__: object) -> None:
        """Return at once, or say what is wrong."""
        if self.trouble is not None:
            raise self.trouble


@dataclass
class Hands:
    """A clock that is turned by hand."""

    now: float = 1000.0
    store: Any = field(default_factory=MemoryStore)

    def wait(self, seconds: float = math.inf, **how: Any) -> Wait:
        """Begin to wait, for so many seconds."""
        request = Request("key", "task", "run", "token")
        return Wait(Leases(self.store), request, self.now + seconds, **how)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """Have whoever waits go by that clock, and spread out nothing."""
    made = Hands()
    monkeypatch.setattr(pacing, "monotonic", lambda: made.now)
    monkeypatch.setattr(pacing.random, "random", lambda: 0.0)
    return made


def test_who_does_not_wait_asks_once_and_wants_no_slot(hands: Hands) -> None:
    """One claim, as it was given; the refusal says who is in the way."""
    hands.store = Line()
    wait = hands.wait(0, polls=True)
    asked = wait.next_request()

    assert (asked.wait, asked.waits) == (0.0, Waits.PASSED)
    with pytest.raises(Conflict, match="task is taken"):
        wait.after(RUNNING)


def test_each_claim_has_a_token_of_its_own(hands: Hands) -> None:
    """An earlier one may be taken back by its token."""
    wait = hands.wait()

    assert len({wait.next_request().token for _ in range(3)} | {"token"}) == 4


def test_pauses_grow_to_the_longest(hands: Hands) -> None:
    """From the shortest on, half as long again each time."""
    wait = hands.wait()
    pauses = []
    for _ in range(8):
        wait.next_request()
        pauses.append(wait.after(RUNNING).sleep)

    assert pauses[:2] == [SHORTEST, SHORTEST * 1.5]
    assert pauses[-1] == LONGEST


@pytest.mark.parametrize(
    ("busy", "took", "expected"),
    [
        (Busy(Reason.RUNNING, "other", 30.0, waiting="run"), 0.001, SHORTEST),
        (Busy(Reason.RUNNING, "other", 30.0, waiting="run"), 0.01, 0.2),
        (Busy(Reason.RUNNING, "other", 30.0, waiting="run"), 1.0, LONGEST),
        (Busy(Reason.WINDOW, "other", 0.3), 0.001, 0.3),
        (Busy(Reason.WINDOW, "other", 60.0), 0.001, LONGEST),
    ],
)
def test_who_is_next_or_knows_the_moment_does_not_guess(
    hands: Hands, busy: Busy, took: float, expected: float
) -> None:
    """The next one asks often, but mostly does not ask; a window's end is known."""
    wait = hands.wait()
    wait.next_request()
    hands.now += took

    assert wait.after(busy).sleep == pytest.approx(expected)


def test_no_pause_ends_after_the_deadline(hands: Hands) -> None:
    """The last question is at the very end."""
    hands.store = Line()
    wait = hands.wait(0.02)
    wait.next_request()

    assert wait.after(RUNNING) == (pytest.approx(0.02), pytest.approx(0.02))
    assert wait.after(AWAY).sleep == pytest.approx(0.02)


def test_who_is_told_listens_and_asks_now_and_then(hands: Hands) -> None:
    """In line from the first claim on, with a slot that soon lapses if it dies."""
    hands.store = Line()
    wait = hands.wait()
    asked = wait.next_request()

    assert (asked.wait, asked.waits) == (LISTENER_SLOT, Waits.LISTENING)
    assert wait.after(RUNNING).listen == LONGEST_WAIT


def test_who_polls_goes_first_after_a_while(hands: Hands) -> None:
    """A stream of fresh runs must not starve it."""
    wait = hands.wait(polls=True)
    early = wait.next_request()
    hands.now += RESERVES + 1
    late = wait.next_request()

    assert (early.wait, early.waits) == (SLOT, Waits.PASSED)
    assert (late.wait, late.waits) == (SLOT, Waits.FIRST)
    assert wait.after(RUNNING).listen == 0


@pytest.mark.parametrize(
    ("trouble", "listens"), [(None, True), (AWAY, True), (ConfigurationError("no right"), False)]
)
def test_who_may_not_listen_polls(hands: Hands, trouble: Exception | None, *, listens: bool) -> None:
    """A missing right stays missing; an outage passes."""
    hands.store = Line()
    hands.store.trouble = trouble
    wait = hands.wait()
    wait.listen(1.0)

    assert (wait.next_request().waits is Waits.LISTENING) == listens
    assert (wait.after(RUNNING).listen > 0) == listens


def test_a_run_that_has_ended_is_not_waited_for(hands: Hands) -> None:
    """It will never be granted again."""
    wait = hands.wait()
    wait.next_request()

    with pytest.raises(Conflict, match="finished"):
        wait.after(Busy(Reason.FINISHED, "run", 0.0))


def test_a_store_that_never_answered_is_asked_a_few_times(hands: Hands) -> None:
    """Where that was asked for; otherwise until the deadline."""
    few, for_ever = hands.wait(tries=3), hands.wait()
    for _ in range(2):
        assert few.after(AWAY).sleep == LONGEST
    for _ in range(20):
        assert for_ever.after(AWAY).sleep == LONGEST

    with pytest.raises(StoreUnavailable):
        few.after(AWAY)


def test_a_store_that_has_answered_may_be_away_for_a_while(hands: Hands) -> None:
    """As long as was said, however often it is asked."""
    wait = hands.wait(tries=3, outage=30.0)

    def ask(after: float, answer: Busy | StoreUnavailable) -> Callable[[], object]:
        hands.now += after
        wait.next_request()
        return lambda: wait.after(answer)

    ask(0, RUNNING)()
    for _ in range(5):
        ask(5, AWAY)()

    with pytest.raises(StoreUnavailable):
        ask(6, AWAY)()


def test_giving_up_lets_the_others_pass(hands: Hands) -> None:
    """The waiting slot is free again; one who took none asks nothing."""
    wait = hands.wait(polls=True)
    hands.store.queue("key", "run", ttl_ms=60_000, running_too=False)

    hands.wait().give_up()
    assert hands.store.peek("key").record.slot == "run"
    wait.give_up()
    assert hands.store.peek("key").record.slot == ""
