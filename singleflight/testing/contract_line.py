"""The contract of `Lining`: who goes first, what is called, what stays and what leaves."""
# ruff: noqa: S101 - tests assert

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from singleflight.errors import ConfigurationError
from singleflight.lease import Granted, Outcome, Reason
from singleflight.stores.base import Claim, Release
from singleflight.stores.lining import MAX_CALLED, MAX_MESSAGE, Arrival, Kind, Lining, Standing, Swept, Wait
from singleflight.testing.contract_base import LONG, Rules
from singleflight.testing.contract_line_base import At, message_of, turned

if TYPE_CHECKING:
    from singleflight.stores.base import Store
    from singleflight.testing.clock import FakeClock, RealClock


class LineRules(Rules):
    """What needs no time to pass."""

    @pytest.fixture
    def at(self, store: Lining, key: str) -> At:
        """A key, and a process that can publish for one home."""
        assert isinstance(store, Lining)
        return At(store, key, f"singleflight:home:{{{uuid4().hex}}}")

    def test_who_comes_first_is_called_first(self, at: At) -> None:
        """Each release calls the next one, with its message, in the order of arrival."""
        at.granted("a")
        for run in ("b", "c", "d"):
            at.park(run)
        called = at.release("a")
        order = []
        while called:
            (one,) = called
            assert one.message == message_of(one.run_id)
            at.sent(one)
            at.granted(one.run_id, called=one)
            order.append(one.run_id)
            called = at.release(one.run_id)

        assert order == ["b", "c", "d"]
        assert at.waiting == []

    def test_a_claim_that_is_refused_leaves_no_trace_in_the_line(self, at: At) -> None:
        """Only `park` waits."""
        at.granted("a")
        at.refused("b")

        assert at.waiting == []
        assert at.release("a") == []

    def test_parking_claims_first(self, at: At) -> None:
        """A key that became free between claim and park is taken, and nothing is left in the line."""
        at.granted("a")
        at.refused("b")
        at.release("a")

        assert isinstance(at.park("b").answer, Granted)
        assert at.waiting == []

    def test_nobody_passes_one_who_was_called(self, at: At) -> None:
        """A fresh run, a plain claim and a retry are refused while somebody else's call lasts."""
        at.granted("a")
        at.park("b")
        at.release("a")

        assert at.refused("c").reason is Reason.RESERVED
        assert at.refused("r", attempt=1).reason is Reason.RESERVED
        assert at.park("d").answer.reason is Reason.RESERVED  # type: ignore[union-attr]
        assert at.waiting == ["b", "d"]

    def test_nobody_passes_by_a_plain_claim(
        self, store: Store, at: At, key: str, clock: FakeClock | RealClock
    ) -> None:
        """Somebody who knows nothing of lines stands behind all; what it frees is called by a sweep."""
        turned(clock)  # a hail lasts two seconds
        at.granted("a")
        at.park("b")
        store.release(Release(key, "a", 0, "token-a-0", Outcome.FINISHED))

        refused = store.claim(Claim(key, "c", 0, "token-c-0", LONG))

        assert getattr(refused, "reason", None) is Reason.RESERVED
        assert [one.run_id for one in at.sweep()] == ["b"]

    def test_a_message_carries_its_order(self, at: At) -> None:
        """A run that has no entry here, but came earlier than those who wait, goes before them."""
        at.granted("a")
        order = at.park("b").order
        at.park("c")
        (called,) = at.release("a")
        at.sent(called)
        assert called.order == order
        at.store.leave(at.key, "b")

        assert at.refused("d").reason is Reason.RESERVED
        at.granted("b", order=order)

    def test_an_order_from_the_future_is_none(self, at: At) -> None:
        """A message may say anything; the line is not spoiled by it."""
        at.granted("a")
        at.park("b", order=1 << 60)
        at.park("c")

        assert at.waiting == ["b", "c"]

    def test_a_call_is_taken_by_its_number_alone(self, at: At) -> None:
        """A copy without the number may start, and the entry stays for the one whose message is kept."""
        at.granted("a")
        at.park("b")
        at.release("a")
        at.granted("b", token="copy")  # noqa: S106 - a lease's token is no password

        assert at.waiting == ["b"]
        at.release("b")
        assert at.waiting == []

    def test_a_parked_copy_outlives_the_delivery_that_is_granted(
        self, store: Store, at: At, clock: FakeClock | RealClock
    ) -> None:
        """The copy of a message parks, its first delivery is granted and dies: the copy is called."""
        turned(clock)  # a hail lasts two seconds
        at.granted("a")
        at.park("b")
        at.release("a")
        at.granted("b", token="w1")  # noqa: S106
        store.evict(at.key)

        (called,) = at.sweep()

        assert (called.run_id, called.message) == ("b", message_of("b"))

    def test_sent_takes_the_message_out_and_keeps_the_place(self, at: At) -> None:
        """A message that was published is in one place only; its entry waits for its return."""
        at.granted("a")
        at.park("b")
        (called,) = at.release("a")

        assert at.sent(called)
        assert not at.sent(called._replace(call_no=called.call_no + 1))
        assert at.waiting == ["b"]

    def test_a_late_sent_takes_nothing(self, at: At) -> None:
        """Said after the message came and parked again, it says nothing of the message that is kept now."""
        at.granted("a")
        at.park("b")
        (called,) = at.release("a")
        at.granted("r", attempt=1, order=called.order - 1)
        at.park("b", called=called)

        assert not at.sent(called)
        (again,) = at.release("r", attempt=1)
        assert again.message == message_of("b")
        assert again.call_no > called.call_no

    def test_a_refused_call_is_over(self, at: At) -> None:
        """Who comes by its call and is refused waits again, where it stood."""
        at.granted("a")
        at.park("b")
        at.park("c")
        (called,) = at.release("a")
        at.sent(called)
        at.granted("r", attempt=1, order=called.order - 1)
        at.park("b", called=called)

        assert at.waiting == ["b", "c"]
        assert [one.run_id for one in at.release("r", attempt=1)] == ["b"]

    def test_a_lower_attempt_never_replaces_a_higher_one(self, at: At) -> None:
        """A late copy of the attempt before does not overwrite the retry that is parked."""
        at.granted("b")
        at.park("b", attempt=1)
        at.park("b", token="copy")  # noqa: S106
        (called,) = at.release("b", Outcome.RETRYING)

        assert called.message == message_of("b", 1)

    def test_a_run_has_one_entry(self, at: At) -> None:
        """Copies never multiply in the line."""
        at.granted("a")
        for copy in ("1", "2", "3"):
            at.park("b", token=copy)

        assert at.waiting == ["b"]

    def test_a_copy_of_a_live_run_is_not_called(self, at: At) -> None:
        """It leaves when its run has ended."""
        at.granted("a")
        at.park("a", token="copy")  # noqa: S106
        assert at.waiting == ["a"]

        assert at.release("a") == []
        assert at.waiting == []

    def test_a_copy_of_what_is_over_leaves(self, at: At) -> None:
        """FINISHED takes an entry of this attempt or a lower one with it, and only that."""
        at.granted("b")
        at.park("b", attempt=1)
        at.release("b", Outcome.RETRYING)

        assert at.refused("b", token="copy").reason is Reason.FINISHED  # noqa: S106
        assert at.waiting == ["b"]

    def test_resumed_runs_stand_in_line_too(self, at: At) -> None:
        """A retry waits behind those who came before it."""
        at.granted("a")
        at.park("b")
        at.park("a", attempt=1, token="retry")  # noqa: S106
        (called,) = at.release("a", Outcome.RETRYING)

        assert called.run_id == "b"

    def test_the_window_stops_only_those_who_have_not_begun(self, at: At) -> None:
        """Within a window a retry is called, past the fresh run that stands before it."""
        at.granted("a", window_ms=LONG)
        at.park("b", window_ms=LONG)
        at.park("a", attempt=1, window_ms=LONG)

        (called,) = at.release("a", Outcome.RETRYING)

        assert (called.run_id, at.refused("b", window_ms=LONG).reason) == ("a", Reason.WINDOW)
        at.granted("a", 1, called)

    def test_who_gives_up_leaves_and_the_next_is_called(self, at: At) -> None:
        """`leave` of one who was called gives the key to the next."""
        at.granted("a")
        at.park("b")
        at.park("c")
        at.release("a")

        (called,) = at.store.leave(at.key, "b", (at.home,))

        assert (called.run_id, at.waiting) == ("c", ["c"])

    def test_a_dropped_run_ends_instead_of_starting(self, at: At) -> None:
        """It is published though the key is held, and told ENDING until its end is recorded."""
        at.granted("a")
        at.park("b")
        assert at.store.drop(at.key, "b")
        (called,) = at.sweep()
        at.sent(called)

        assert at.refused("b", called=called).reason is Reason.ENDING
        assert at.refused("b", token="copy").reason is Reason.ENDING  # noqa: S106
        at.release("b", Outcome.CANCELLED)
        assert at.refused("b", token="copy").reason is Reason.FINISHED  # noqa: S106
        assert at.waiting == []

    def test_a_dropped_run_is_in_nobodys_way(self, at: At) -> None:
        """It takes no room, and the next one is called."""
        at.granted("a")
        at.park("b")
        at.park("c")
        at.store.drop(at.key, "b")

        assert sorted(one.run_id for one in at.release("a")) == ["b", "c"]

    def test_a_run_that_has_begun_is_not_dropped(self, at: At) -> None:
        """Neither a retry, nor a live run, nor one that does not wait."""
        at.granted("a")
        at.park("a", token="copy")  # noqa: S106
        at.park("r", attempt=1)

        assert [at.store.drop(at.key, run) for run in ("a", "r", "nobody")] == [False, False, False]

    def test_who_joins_is_published_when_the_joined_run_has_ended(self, at: At) -> None:
        """All at once, whatever room there is, while a run that waits takes the key."""
        at.granted("a")
        at.park("j", kind=Kind.JOINING, life_ms=LONG)
        at.park("k", kind=Kind.JOINING, life_ms=LONG)
        at.park("b")

        assert sorted(one.run_id for one in at.release("a")) == ["b", "j", "k"]

    def test_who_joins_reserves_nothing(self, at: At) -> None:
        """A retry is no end, and a free key is anybody's."""
        at.granted("a")
        at.park("j", kind=Kind.JOINING, life_ms=LONG)

        assert at.release("a", Outcome.RETRYING) == []
        at.granted("b")

    def test_an_answer_carries_few_messages_and_the_rest_comes_at_once(self, at: At) -> None:
        """Of many who join, sixteen are in one answer, and the next sweep is due now."""
        at.granted("a")
        for number in range(MAX_CALLED + 4):
            at.park(f"j{number}", kind=Kind.JOINING, life_ms=LONG)

        assert len(at.release("a")) == MAX_CALLED
        assert len(at.sweep()) == 4  # noqa: PLR2004 - the rest

    def test_only_its_home_gets_a_message(self, at: At, clock: FakeClock | RealClock) -> None:
        """Released by another home, a run is called for its own, whose sweep gets the message."""
        turned(clock)  # a hail lasts two seconds
        other = At(at.store, at.key, f"{at.home}:other")
        at.granted("a")
        other.park("b")

        assert at.release("a") == []
        assert at.refused("c").reason is Reason.RESERVED
        assert at.sweep() == []
        assert [one.run_id for one in other.sweep()] == ["b"]

    def test_who_can_publish_for_no_home_sweeps_nothing(self, at: At) -> None:
        """A process without a home has nothing to do."""
        at.granted("a")
        at.park("b")

        assert at.store.sweep(()) == Swept()

    def test_a_listener_stands_in_the_same_line(self, at: At) -> None:
        """It is called without a message, and comes by itself."""
        at.granted("a")
        at.park("l", kind=Kind.LISTENING, life_ms=LONG)
        at.park("b")

        assert at.release("a") == []
        assert at.refused("c").reason is Reason.RESERVED
        at.granted("l")
        assert at.waiting == ["b"]

    def test_a_parked_run_needs_no_slot(self, store: Store, at: At) -> None:
        """Its waiting slot is cleared, and whoever asks for one learns that a run waits already."""
        at.granted("a")
        store.queue(at.key, "b", ttl_ms=LONG, running_too=False)
        at.park("b")

        found = store.peek(at.key)
        assert found is not None
        assert found.record.slot == ""
        queued = store.queue(at.key, "c", ttl_ms=LONG, running_too=False)
        assert queued is not None
        assert queued.reason is Reason.QUEUED

    def test_operators_see_who_waits_and_never_its_message(self, at: At) -> None:
        """How many, since when, and who was called."""
        at.granted("a")
        for run in ("b", "c"):
            at.park(run, message=b"secret")
        at.release("a")

        look = at.store.line_of(at.key, most=1)

        assert (look.waiting, len(look.shown)) == (2, 1)
        assert (look.shown[0].run_id, look.shown[0].standing) == ("b", Standing.CALLED)
        assert look.shown[0].since_ms <= look.now_ms
        assert "secret" not in repr(look)

    def test_a_claim_in_line_is_recognised_by_its_token(self, at: At) -> None:
        """A claim or a park whose reply was lost is answered the same again."""
        first = at.granted("a").answer
        assert at.granted("a").answer == at.park("a").answer == first

    def test_the_longest_message_is_kept_as_it_is(self, at: At) -> None:
        """256 KiB of any bytes; longer ones are refused, and so is one without a home."""
        at.granted("a")
        at.park("b", message=bytes(range(256)) * 1024)
        (called,) = at.release("a")

        assert called.message == bytes(range(256)) * 1024
        claim = Claim(at.key, "c", 0, "token-c-0", LONG)
        for wait in (Wait(home=at.home, message=bytes(MAX_MESSAGE + 1)), Wait(message=b"c")):
            with pytest.raises(ConfigurationError):
                at.store.park(claim, Arrival(), wait)
