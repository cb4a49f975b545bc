"""What becomes of a refused Celery run, and for how long its broker lets it stay away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import VERSION, Celery

from singleflight import Singleton
from singleflight.celery import install
from singleflight.celery.adapter import CeleryAdapter
from singleflight.celery.delivery import may_come_back
from singleflight.celery.endings import countable
from singleflight.lease import Busy, Reason
from singleflight.leases.claiming import Leases
from singleflight.stores.memory import MemoryStore
from singleflight.tasks.adapter import Later, Skipped
from singleflight.tasks.admission import Admission
from singleflight.tasks.delivery import Delivery
from singleflight.tasks.message import Carried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.tasks.adapter import Fate


@pytest.fixture
def app() -> Iterator[Celery]:
    """Return an app whose results are in memory."""
    app = Celery("turns", broker="memory://", backend="cache+memory://", set_as_current=False)
    install(app, "memory://")
    yield app
    app.close()


def nothing() -> None:
    """Do nothing."""


class Refusing(MemoryStore):
    """A store that answers every claim alike."""

    busy: Busy

    def claim(self, *_: Any) -> Busy:
        """Refuse."""
        return self.busy


def refused(task: Any, delivery: Delivery, busy: Busy) -> Fate:
    """Return what becomes of a delivery whose claim is answered like this."""
    runtime, store = task.app.singleflight, Refusing()
    store.busy = busy
    policy = runtime.policy(task, delivery)
    request = runtime.request(task, policy, delivery)
    adapter = CeleryAdapter(runtime, task, delivery.run_id)
    return Admission(adapter, Leases(store), policy, delivery, request).decide()


@pytest.mark.parametrize(
    ("broker", "visible", "longest"),
    [
        ("redis://", 5, 2),
        ("redis://", 1, 1),
        ("redis://", None, 15),
        ("sentinel://", 20, 10),
        ("sqs://", 30, 15),
        ("amqp://", 5, 15),
    ],
)
@pytest.mark.parametrize("on_conflict", ["defer", "join"])
def test_a_deferral_ends_before_the_broker_delivers_again(
    broker: str, visible: int | None, longest: float, on_conflict: Any
) -> None:
    """Each copy of a waiting run would be deferred by itself, so that a crowd doubled with every visit."""
    app = Celery("short", broker=broker, backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {} if visible is None else {"visibility_timeout": visible}
    install(app, "memory://")
    app.task(shared=False, name="turns.short", singleton=Singleton(by=(), on_conflict=on_conflict))(nothing)
    task = app.tasks["turns.short"]
    delivery = Delivery("run", 0, "token", (), {}, Carried(deferrals=1000, since=time.time()))
    busy = Busy(Reason.RUNNING, "other", 600.0)
    fates = [refused(task, delivery, busy) for _ in range(50)]
    app.close()

    assert longest / 2 < max(fate.delay for fate in fates if isinstance(fate, Later)) <= longest


@pytest.mark.parametrize(("slot", "met"), [(None, None), ("key", "next")])
def test_a_publishers_duplicate_joins_the_run_that_goes_next(app: Celery, slot: str | None, met: Any) -> None:
    """Who has reserved a key is met like one that runs, and not the run before, which has ended."""
    options = Singleton(at_most_one="waiting_or_running")
    app.task(shared=False, name="turns.once", singleton=options)(nothing)
    task = app.tasks["turns.once"]
    delivery = Delivery("run", 0, "token", (), {}, Carried(slot=slot))
    busy = Busy(Reason.RESERVED, "before", 5.0, waiting="next")
    fate = refused(task, delivery, busy)

    if met is None:
        assert isinstance(fate, Skipped)
    else:
        assert isinstance(fate, Later)
        assert fate.carried.joins == met


@pytest.mark.parametrize(
    ("broker", "given", "seconds"),
    [
        ("redis://", None, 3600),
        ("sqs://", None, 1800),
        ("sqs://", 60, 60),
        ("pgmq://", 10, 10),
        ("amqp://", 10, None),
    ],
)
def test_the_visibility_timeout_is_what_the_transport_goes_by(
    broker: str, given: int | None, seconds: float | None
) -> None:
    """Built in it differs, and transports without one ignore the option."""
    app = Celery("visible", broker=broker, set_as_current=False)
    app.conf.broker_transport_options = {} if given is None else {"visibility_timeout": given}
    install(app, "memory://")

    assert app.singleflight.visibility_timeout == seconds
    app.close()


@pytest.mark.parametrize(("kind", "counted"), [("classic", 0.3), ("quorum", 1.0)])
def test_only_quorum_queues_count_whole_seconds(app: Celery, kind: str, counted: float) -> None:
    """Log, event and metric say what the broker will do."""
    app.conf.task_queues = {"queue": {"exchange": "queue", "queue_arguments": {"x-queue-type": kind}}}
    app.task(shared=False, name="turns.counted")(nothing)

    assert countable(app.tasks["turns.counted"], 0.3) == counted


@pytest.mark.parametrize(
    ("settings", "failed", "timed_out"),
    [
        ({}, False, False),
        ({"acks_late": True}, False, False),
        ({"acks_late": True, "acks_on_failure_or_timeout": False}, True, True),
        ({"acks_late": False, "acks_on_failure_or_timeout": False}, False, False),
        pytest.param(
            *({"acks_late": True, "acks_on_failure": False, "acks_on_timeout": True}, True, False),
            marks=pytest.mark.skipif(VERSION < (5, 7), reason="Celery tells the two apart since 5.7"),
        ),
    ],
)
def test_a_failed_run_may_come_back_where_its_message_is_rejected(
    app: Celery, settings: dict[str, bool], failed: bool, timed_out: bool
) -> None:
    """Only an acknowledged message is gone for good; failures and time limits may differ in that."""
    app.task(shared=False, name="turns.rejected", singleton=True, **settings)(nothing)
    task = app.tasks["turns.rejected"]

    assert (may_come_back(task), may_come_back(task, timeout=True)) == (failed, timed_out)
