"""How a Dramatiq run ends that waits no longer, and which one it joins."""

from __future__ import annotations

import time
from typing import Any

import dramatiq
import pytest
from dramatiq.broker import MessageProxy
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import Results
from dramatiq.results.backends.stub import StubBackend

from singleflight import Singleton
from singleflight.dramatiq import gate
from singleflight.dramatiq.arrival import Arrival
from singleflight.dramatiq.declared import check
from singleflight.dramatiq.delivery import carried_by
from singleflight.dramatiq.errors import Ended
from singleflight.dramatiq.runtime import Runtime
from singleflight.events import Notify
from singleflight.lease import Busy, Reason
from singleflight.stores.base import Waits
from singleflight.stores.memory import MemoryStore
from singleflight.tasks.delivery import Delivery
from singleflight.tasks.message import Carried


@pytest.fixture
def broker() -> StubBroker:
    """Return a stub broker that keeps results."""
    return StubBroker(middleware=[Results(backend=StubBackend(), store_results=True)])


def arrival(broker: StubBroker, carried: Carried, **options: Any) -> Arrival:
    """Return a message that arrives at a worker, with nothing in the store yet."""
    runtime = Runtime(
        MemoryStore(),
        prefix="p",
        enabled=True,
        defaults=None,
        store_timeout=1,
        remember=60,
        notify=Notify(),
        check=check,
    )

    @dramatiq.actor(broker=broker)
    def work() -> None:
        """Do nothing."""

    work.options["singleton"] = Singleton(**options)
    message = work.message()
    delivery = Delivery(message.message_id, 0, "token", (), {}, carried)
    policy = runtime.policy(work, carried)
    assert policy is not None
    request = runtime.request(work, policy, delivery)
    assert request is not None
    leases = runtime.leases(broker)
    return Arrival(broker, MessageProxy(message), delivery, policy, request, leases, observing=False)


def ended(arrival: Arrival) -> None:
    """Do what the middleware does when the message is acknowledged: its end is stored."""
    release = gate.take_leaving(arrival.message)
    assert release is not None
    arrival.leases.store.release(release)


@pytest.mark.parametrize("deferrals", [1, 5])
def test_a_run_that_gives_up_leaves_its_place(broker: StubBroker, deferrals: int) -> None:
    """The next change of what is coalesced would be taken for a duplicate of it, and lost."""
    carried = Carried(deferrals=deferrals, since=time.time() - 60)
    waiting = arrival(broker, carried, on_conflict="coalesce", give_up_after=10)
    leases, key = waiting.leases, waiting.request.key
    holder = leases.claim(
        waiting.request._replace(run_id="holder", token="other", wait=0, waits=Waits.PASSED)
    )
    assert not isinstance(holder, Busy)

    with pytest.raises(Ended, match="duplicate of run holder"):
        waiting.admission()

    ended(waiting)
    look = leases.store.peek(key)
    holder.release()
    assert look is not None
    assert (look.record.run_id, look.record.slot) == ("holder", "")


def test_a_skipped_run_gets_no_place_any_more(broker: StubBroker) -> None:
    """Its sender may ask for the slot when it has been skipped already, and would mute the key."""
    late = arrival(broker, Carried(), at_most_one="waiting_or_running")
    store, key = late.leases.store, late.request.key
    late.leases.claim(late.request._replace(run_id="holder", token="1"))
    with pytest.raises(Ended, match="duplicate of run holder"):
        late.admission()
    ended(late)

    busy = store.queue(key, late.delivery.run_id, ttl_ms=60_000, running_too=False)

    assert busy is not None
    assert busy.reason is Reason.FINISHED


def test_a_duplicate_joins_the_run_that_goes_next(broker: StubBroker) -> None:
    """Who has reserved a key is met like one that runs, and not the run before, which has ended."""
    joining = arrival(broker, Carried(), on_conflict="join", by="*")
    store, key = joining.leases.store, joining.request.key
    before = joining.leases.claim(joining.request._replace(run_id="before", token="1"))
    joining.leases.claim(joining.request._replace(run_id="next", token="2", wait=60, waits=Waits.FIRST))
    assert not isinstance(before, Busy)
    before.release()
    look = store.peek(key)
    assert look is not None
    assert (look.record.slot, look.record.first) == ("next", True)

    with pytest.raises(Ended):
        joining.admission()

    (delayed,) = broker.queues[dramatiq.common.dq_name("default")].queue
    assert carried_by(dramatiq.Message.decode(delayed)).joins == "next"


@pytest.mark.parametrize(("deferrals", "fate"), [(0, "deferred by"), (4, "duplicate of")])
def test_an_old_result_of_the_same_id_does_not_turn_a_duplicate_into_a_run(
    broker: StubBroker, deferrals: int, fate: str
) -> None:
    """Whose result is out gives its lease back at once; where that does not happen, the result is no news."""
    late = arrival(broker, Carried(deferrals=deferrals, since=time.time()))
    results = next(one for one in broker.middleware if isinstance(one, Results))
    results.backend.store_result(late.message.copy(message_id="other"), None, 1000)
    late.leases.claim(late.request._replace(run_id="other", token="1"))

    with pytest.raises(Ended, match=fate):
        late.admission()
