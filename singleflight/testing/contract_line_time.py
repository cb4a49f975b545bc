"""The contract of `Lining` where time passes: what lapses, who is passed over, what a crash leaves."""
# ruff: noqa: S101 - tests assert

from __future__ import annotations

from typing import TYPE_CHECKING

from singleflight.lease import Reason
from singleflight.stores.line import CALL_MS, HAND_MS, LONGEST_MS, PASS_MS
from singleflight.stores.lining import Kind
from singleflight.testing.contract_line import LineRules
from singleflight.testing.contract_line_base import At, message_of, turned

if TYPE_CHECKING:
    from singleflight.stores.base import Store
    from singleflight.testing.clock import FakeClock, RealClock


class LineTimeRules(LineRules):
    """What happens by itself, and at each point where a process can die."""

    def test_a_key_whose_holder_died_is_called_by_a_sweep(self, at: At, clock: FakeClock | RealClock) -> None:
        """A lease lapses, nobody releases it: the first in line is called."""
        at.granted("a", ttl_ms=self.short)
        at.park("b")
        assert at.sweep() == []
        clock.advance(self.lapse)

        assert [one.message for one in at.sweep()] == [message_of("b")]

    def test_nobody_passes_one_who_is_ready(self, at: At, clock: FakeClock | RealClock) -> None:
        """A lease lapses, and a fresh run claims before the sweep has come: it calls, and is refused."""
        at.granted("a", ttl_ms=self.short)
        at.park("b")
        clock.advance(self.lapse)

        lined = at.claim("c")

        assert getattr(lined.answer, "reason", None) is Reason.RESERVED
        assert [one.run_id for one in lined.called] == ["b"]

    def test_a_run_whose_acknowledgement_was_lost_is_called_once(self, at: At) -> None:
        """Killed after park, before the acknowledgement: the copy finds the entry and parks in it."""
        at.granted("a")
        at.park("b")
        at.park("b", token="redelivered")  # noqa: S106 - a lease's token is no password

        assert [one.run_id for one in at.release("a")] == ["b"]

    def test_a_message_that_nobody_published_is_called_again(
        self, at: At, clock: FakeClock | RealClock
    ) -> None:
        """Killed after the release, before the publish: it is passed over for a moment, then called again."""
        turn = turned(clock)
        at.granted("a")
        at.park("b")
        at.park("c")
        (first,) = at.release("a")
        turn.advance(HAND_MS / 1000)
        (second,) = at.sweep()
        at.sent(second)
        at.granted("c", called=second)
        turn.advance(PASS_MS / 1000)
        (again,) = at.release("c")

        assert (first.run_id, second.run_id, again.run_id) == ("b", "c", "b")
        assert again.call_no > first.call_no

    def test_who_cannot_be_published_is_passed_over_at_doubling_distance(
        self, at: At, clock: FakeClock | RealClock
    ) -> None:
        """Its home's broker is away: it is asked again after 1 s, 2 s, 4 s, and others are not kept out."""
        turn = turned(clock)
        at.granted("a")
        at.park("b")
        at.release("a")
        for passed in range(3):
            turn.advance(HAND_MS / 1000)
            assert at.sweep() == []
            at.granted(f"other-{passed}")
            at.release(f"other-{passed}")
            turn.advance((PASS_MS << passed) / 1000 - 0.001)
            assert at.sweep() == []
            turn.advance(0.001)
            assert [one.run_id for one in at.sweep()] == ["b"]

    def test_a_published_message_may_come_before_its_sent(self, at: At) -> None:
        """Killed between publish and `sent`: the run starts by its number, and nothing is left."""
        at.granted("a")
        at.park("b")
        (called,) = at.release("a")

        at.granted("b", called=called)
        assert at.waiting == []

    def test_a_call_lasts_longer_each_time_that_it_lapses(self, at: At, clock: FakeClock | RealClock) -> None:
        """A message travels through a backlog: its key is kept for 4 s, and once it came in time anew."""
        turn = turned(clock)
        at.granted("a")
        at.park("b")
        (called,) = at.release("a")
        at.sent(called)
        turn.advance(2 * CALL_MS / 1000 - 0.001)
        assert at.refused("c").reason is Reason.RESERVED
        turn.advance(0.001)

        at.granted("c")

    def test_an_entry_whose_message_was_lost_leaves(
        self, store: Store, at: At, clock: FakeClock | RealClock
    ) -> None:
        """The broker loses a called message: its place is kept for `remember`, and mutes nobody."""
        turn = turned(clock)
        at.granted("a")
        at.park("b")
        (called,) = at.release("a")
        at.sent(called)
        turn.advance(store.remember / 2)
        assert at.sweep() == []
        assert at.waiting == ["b"]
        assert store.queue(at.key, "c", ttl_ms=1, running_too=False) is None
        turn.advance(store.remember / 2)
        at.sweep()

        assert at.store.line_of(at.key).waiting == 0

    def test_a_dead_listener_costs_one_life(self, at: At, clock: FakeClock | RealClock) -> None:
        """Who does not look again leaves, and the next is called."""
        turn = turned(clock)
        at.granted("a")
        at.park("l", kind=Kind.LISTENING, life_ms=3000)
        at.park("b")
        at.release("a")
        turn.advance(3)

        assert [one.run_id for one in at.sweep()] == ["b"]

    def test_a_listener_lives_by_its_looks(self, at: At, clock: FakeClock | RealClock) -> None:
        """Each look is a life more."""
        turn = turned(clock)
        at.granted("a")
        at.park("l", kind=Kind.LISTENING, life_ms=3000)
        for _ in range(3):
            turn.advance(2)
            at.park("l", kind=Kind.LISTENING, life_ms=3000)
            at.sweep()

        assert at.waiting == ["l"]

    def test_a_countdown_is_waited_for(self, at: At, clock: FakeClock | RealClock) -> None:
        """Its call lasts until its message is back, and no longer."""
        turn = turned(clock)
        at.granted("a")
        at.park("b", kind=Kind.COUNTING, life_ms=8000)
        at.release("a")
        turn.advance(7.999)
        assert at.refused("c").reason is Reason.RESERVED
        turn.advance(0.001)

        at.granted("c")

    def test_who_joins_looks_at_doubling_distance(self, at: At, clock: FakeClock | RealClock) -> None:
        """The joined run was killed and never released: who joins it is published to look for itself."""
        turn = turned(clock)
        at.granted("a")
        at.park("j", kind=Kind.JOINING, life_ms=3000)
        for distance in (3, 6, 12):
            turn.advance(distance - 0.001)
            assert at.sweep() == []
            turn.advance(0.001)
            (called,) = at.sweep()
            at.sent(called)
            at.park("j", called=called, kind=Kind.JOINING, life_ms=3000)

    def test_a_home_that_went_away_stops_nobody(self, at: At, clock: FakeClock | RealClock) -> None:
        """The head's home does not take its call: the next one's home is looked at all the same."""
        turn = turned(clock)
        gone = At(at.store, at.key, f"{at.home}:gone")
        at.granted("a", ttl_ms=1000)
        gone.park("b")
        at.park("c")
        called = []
        for _ in range(10):
            turn.advance(1)
            called += at.sweep()

        assert [one.run_id for one in called][:1] == ["c"]

    def test_a_window_that_opens_calls_the_first(self, at: At, clock: FakeClock | RealClock) -> None:
        """At the last instant of the window nobody is called, a millisecond later the first in line is."""
        turn = turned(clock)
        at.granted("a", window_ms=10_000)
        at.park("b", window_ms=10_000)
        at.release("a")
        turn.advance(10)
        assert at.sweep() == []
        turn.advance(0.001)

        (called,) = at.sweep()
        at.granted("b", called=called, window_ms=10_000)

    def test_a_line_is_not_forgotten(self, at: At, clock: FakeClock | RealClock) -> None:
        """However long nobody comes, what is parked is called when somebody does."""
        turn = turned(clock)
        at.granted("a")
        at.park("b")
        turn.advance(30 * 86400)

        assert [one.run_id for one in at.sweep()] == ["b"]

    def test_a_clock_that_steps_back_stops_nobody(self, at: At, clock: FakeClock | RealClock) -> None:
        """No lease, call, passing over or moment is further ahead than it can be."""
        turn = turned(clock)
        at.granted("a", ttl_ms=3000)
        at.park("b")
        at.sweep()
        called = []
        for _ in range(2):
            turn.step_back(86400)
            for _ in range(LONGEST_MS // 1000 + 10):
                called += at.sweep()
                turn.advance(1)
            assert {one.run_id for one in called} == {"b"}
            called = []

    def test_a_sweep_says_when_the_next_one_is_due(self, at: At, clock: FakeClock | RealClock) -> None:
        """In time for the lease that ends first; unknown where nobody waits."""
        turned(clock)
        assert at.store.sweep((at.home,)).due_in is None
        at.granted("a", ttl_ms=7000)
        at.park("b")

        assert at.store.sweep((at.home,)).due_in == 7  # noqa: PLR2004 - the ttl

    def test_a_lost_record_does_not_lose_its_line(
        self, store: Store, at: At, clock: FakeClock | RealClock
    ) -> None:
        """The record alone is gone: a sweep finds who waits when the lease would have lapsed."""
        turn = turned(clock)
        at.granted("a", ttl_ms=3000)
        at.park("b")
        self.lose(store, at.key)
        turn.advance(3)

        (called,) = at.sweep()

        at.granted("b", called=called)

    def test_an_entry_that_outlived_its_record_takes_nobody_along(
        self, store: Store, at: At, clock: FakeClock | RealClock
    ) -> None:
        """A listener died, its record is gone: whoever parks afterwards is not forgotten when it leaves."""
        turn = turned(clock)
        at.granted("a")
        at.park("l", kind=Kind.LISTENING, life_ms=3000)
        at.release("a")
        self.lose(store, at.key)
        turn.advance(3)
        at.granted("b")
        at.park("c")
        (called,) = at.release("b")
        turn.advance((HAND_MS + PASS_MS) / 1000)

        assert [one.run_id for one in at.sweep()] == [called.run_id] == ["c"]
