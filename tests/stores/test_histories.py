"""Random histories: memory and a real Valkey answer as the plain model does, and the lease's facts hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from singleflight.lease import Busy, Granted, Outcome
from singleflight.stores.base import Claim, Record, Release, Renewal, Waits
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock
from tests.stores.clocked import ClockedRedisStore
from tests.stores.model import Model

if TYPE_CHECKING:
    from tests.support.servers import ValkeyServer

KEY = "singleflight:history"
REMEMBER = 1000
RUNS = st.sampled_from("ABCDEFGH")


@dataclass
class Delivery:
    """What a holder knows of its grant, and what the test knows of it."""

    run: str
    attempt: int
    ttl: int
    grant: Granted
    renewed: int
    trusted_until: int


class Histories(RuleBasedStateMachine):
    """One key, many deliveries; time in milliseconds moves only by the rules."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(10.0)
        self.model = Model(REMEMBER)
        self.memory = MemoryStore(clock=self.clock, remember=REMEMBER / 1000)
        self.valkey = ClockedRedisStore(self.url, clock=self.clock, remember=REMEMBER / 1000, timeout=10)
        self.server = redis.Redis.from_url(self.url)
        self.server.delete(KEY)
        self.deliveries: dict[str, Delivery] = {}
        self.ended: set[str] = set()
        self.highest_fence = 0
        self.kept_its_word = True
        """False after a flush or a step of the clock: then some facts are not promised."""

    def teardown(self) -> None:
        """Leave the server as it was."""
        self.server.delete(KEY)
        self.server.close()
        self.valkey.close()

    @property
    def now(self) -> int:
        """Milliseconds."""
        return round(self.clock() * 1000)

    def look(self) -> None:
        """Before an operation: the test's clock decides what is over, and Valkey must be told by hand."""
        self.model.leave()
        there = self.model.there
        self.model.look(self.now)
        if there and not self.model.there:
            self.server.delete(KEY)
            self.ended.clear()

    @rule(
        run=RUNS,
        attempt=st.integers(0, 1),
        ttl=st.sampled_from([3, 5]),
        window=st.sampled_from([0, 0, 4, 9]),
        wait=st.sampled_from([0, 0, 6]),
        after=st.sampled_from([None, None, None, "A", ""]),
        first=st.booleans(),
    )
    def claim(
        self, run: str, attempt: int, ttl: int, window: int, wait: int, after: str | None, first: bool
    ) -> None:
        """A delivery arrives: a new run, a redelivery, a retry, a late copy."""
        token = f"token-{len(self.deliveries)}-{self.now}"
        self.claim_with(token, run, attempt, ttl, window=window, wait=wait, after=after, first=first)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), window=st.sampled_from([0, 4]))
    def replay(self, data: st.DataObject, window: int) -> None:
        """A claim is sent again, because its reply was lost or late."""
        token = data.draw(st.sampled_from(sorted(self.deliveries)))
        known = self.deliveries[token]
        self.claim_with(
            token, known.run, known.attempt, known.ttl, window=window, wait=0, after=None, first=False
        )

    def claim_with(
        self,
        token: str,
        run: str,
        attempt: int,
        ttl: int,
        *,
        window: int,
        wait: int,
        after: str | None,
        first: bool,
    ) -> None:
        """Ask all three, compare, and look at the facts."""
        self.look()
        overtaken = self.model.slot if self.model.reserved and self.model.slot_until > self.now else ""
        started_before = attempt > 0 or run in self.model.runs
        expected = self.model.claim(
            self.now, run, attempt, token, ttl, window=window, after=after, wait=wait, first=first
        )
        request = Claim(KEY, run, attempt, token, ttl, window, "", after, wait, Waits(first))
        answer = self.memory.claim(request)
        assert answer == self.valkey.claim(request)
        assert plain(answer) == expected
        if isinstance(answer, Busy):
            return
        known = self.deliveries.get(token)
        replayed = known is not None and known.grant.fence == answer.fence
        if not replayed:
            assert run not in self.ended, "the copy of a finished run started"
            may_pass = first or started_before
            assert not overtaken or overtaken == run or may_pass, "a fresh run overtook a reservation"
            if self.kept_its_word:
                assert answer.fence > self.highest_fence, "the fence did not grow"
                live = [d for t, d in self.deliveries.items() if t != token and d.trusted_until > self.now]
                assert not live, "two live grants of one key"
        self.highest_fence = max(self.highest_fence, answer.fence)
        until = known.trusted_until if known and replayed else self.now + ttl
        self.deliveries[token] = Delivery(run, attempt, ttl, answer, self.now, until)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """A delivery renews, in time or after a pause of any length."""
        self.look()
        token = data.draw(st.sampled_from(sorted(self.deliveries)))
        known = self.deliveries[token]
        grant = known.grant
        before = self.memory.peek(KEY)
        age = max(0, self.now - known.renewed)
        expected = self.model.renew(
            self.now,
            known.run,
            known.attempt,
            token,
            grant.fence,
            known.ttl,
            started=grant.started_ms,
            opens=grant.opens_ms,
            age=age,
        )
        request = Renewal(
            *(KEY, known.run, known.attempt, token, grant.fence, known.ttl),
            *(grant.started_ms, grant.opens_ms, age),
        )
        assert self.memory.renew([request]) == self.valkey.renew([request]) == [expected]
        if expected == "lost":
            known.trusted_until = 0
            assert self.memory.peek(KEY) == before, "a renewal that was lost changed the record"
        else:
            known.renewed, known.trusted_until = self.now, self.now + known.ttl

    @precondition(lambda self: self.deliveries)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(list(Outcome)),
        grace=st.sampled_from([0, 0, 1]),
        again=st.sampled_from([0, 0, 8]),
        began=st.sampled_from([True, True, False]),
    )
    def release(self, data: st.DataObject, outcome: Outcome, grace: int, again: int, began: bool) -> None:
        """A delivery ends, perhaps for the second time, perhaps long after it lost its lease."""
        self.look()
        token = data.draw(st.sampled_from(sorted(self.deliveries)))
        known = self.deliveries[token]
        before = self.memory.peek(KEY)
        expected = self.model.release(
            *(self.now, known.run, known.attempt, token, outcome), grace=grace, again=again, began=began
        )
        request = Release(KEY, known.run, known.attempt, token, outcome, grace, again, began)
        assert self.memory.release(request) == self.valkey.release(request) == expected
        if outcome.final:
            self.ended.add(known.run)
        known.trusted_until = min(known.trusted_until, self.now + grace)
        after = self.memory.peek(KEY)
        assert after is not None
        if before is not None and not expected:
            assert lease_of(after.record) == lease_of(before.record), "a stranger's release touched a lease"

    @rule(run=RUNS, ttl=st.sampled_from([2, 7]), running_too=st.booleans())
    def queue(self, run: str, ttl: int, running_too: bool) -> None:
        """A run was published."""
        self.look()
        expected = self.model.queue(self.now, run, ttl, running_too=running_too)
        answer = self.memory.queue(KEY, run, ttl_ms=ttl, running_too=running_too)
        assert answer == self.valkey.queue(KEY, run, ttl_ms=ttl, running_too=running_too)
        assert (None if answer is None else plain(answer)) == expected

    @rule(run=RUNS)
    def unqueue(self, run: str) -> None:
        """A published run was revoked."""
        self.look()
        expected = self.model.unqueue(self.now, run)
        assert self.memory.unqueue(KEY, run) == self.valkey.unqueue(KEY, run) == expected

    @rule()
    def evict(self) -> None:
        """Somebody ends the lease by hand."""
        self.look()
        expected = self.model.evict(self.now)
        assert self.memory.evict(KEY) == self.valkey.evict(KEY) == expected
        for delivery in self.deliveries.values():
            delivery.trusted_until = 0

    @rule()
    def flush(self) -> None:
        """The store loses everything."""
        self.model.forget()
        self.memory._records.clear()
        self.server.delete(KEY)
        self.ended.clear()
        for delivery in self.deliveries.values():
            # The store's word is gone: another run may start while this delivery still trusts it.
            delivery.trusted_until = 0
        self.clock.advance(0.001)

    @rule(milliseconds=st.sampled_from([1, 1, 2, 3, 5, 20, 1100]))
    def time_passes(self, milliseconds: int) -> None:
        """Nobody does anything for a while."""
        self.clock.advance(milliseconds / 1000)

    @rule(milliseconds=st.sampled_from([2, 30, 500]))
    def clock_steps_back(self, milliseconds: int) -> None:
        """The store's clock is set back."""
        self.clock.step_back(milliseconds / 1000)
        self.kept_its_word = False

    @invariant()
    def facts(self) -> None:
        """What must hold at every moment."""
        self.look()
        memory, valkey = self.memory.peek(KEY), self.valkey.peek(KEY)
        assert (memory is not None) == (valkey is not None) == self.model.there
        if memory is None or valkey is None:
            return
        assert memory.record == valkey.record
        assert memory.now_ms == valkey.now_ms == self.now
        assert self.server.pttl(KEY) > 0, "a key without expiry"
        assert memory.remaining_ms == self.model.dies - self.now
        record = valkey.record
        assert record.expires_ms - valkey.now_ms <= record.ttl_ms, "more time left than the ttl"
        assert record.started_ms <= valkey.now_ms
        assert [(r.run_id, r.attempt, r.ended) for r in record.runs] == [
            (run, *state) for run, state in self.model.runs.items()
        ]


def plain(answer: Granted | Busy) -> tuple[Any, ...]:
    """Return an answer as the model gives it."""
    if isinstance(answer, Granted):
        return ("granted", answer.fence, answer.took_over, answer.started_ms, answer.opens_ms)
    return (
        *("busy", answer.reason, answer.run_id, round(answer.retry_after * 1000), answer.resumed),
        *(answer.waiting, answer.ended, round((answer.since or 0) * 1000)),
    )


def lease_of(record: Record) -> tuple[Any, ...]:
    """Return what a stranger must leave alone."""
    return (
        *(record.token, record.run_id, record.fence, record.held, record.expires_ms, record.ttl_ms),
        *(record.started_ms, record.opens_ms, record.outcome),
    )


@pytest.mark.timeout(300)
def test_memory_and_valkey_answer_as_the_model_does(valkey: ValkeyServer) -> None:
    """In random histories all three give the same answers, and the facts of the lease hold throughout."""
    Histories.url = valkey.url
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
