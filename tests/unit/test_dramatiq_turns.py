"""Which Dramatiq runs ask for the next turn of a key: those that must run, and nobody else."""

from __future__ import annotations

import time
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from singleflight import Singleton
from singleflight.carried import Carried
from singleflight.dramatiq.delivery import Delivery
from singleflight.dramatiq.runtime import Runtime
from singleflight.events import Notify

OFTEN: dict[str, Any] = {"deferrals": 5, "since": time.time()}


@pytest.mark.parametrize(
    ("options", "carried", "kin", "wait", "first"),
    [
        ({}, {}, False, False, False),
        ({}, OFTEN, False, False, False),  # kept away by outages of the store: it may yet be a duplicate
        ({}, OFTEN, True, True, True),
        ({"on_conflict": "join", "by": "*"}, OFTEN, False, False, False),
        ({"on_conflict": "defer"}, {}, False, False, False),
        ({"on_conflict": "defer"}, OFTEN, False, True, True),
        ({"on_conflict": "coalesce"}, {}, False, True, False),
        ({"at_most_one": "waiting_or_running"}, OFTEN, False, False, False),
    ],
)
def test_only_what_must_run_asks_for_a_turn(
    options: dict[str, Any], carried: dict[str, Any], kin: bool, wait: bool, first: bool
) -> None:
    """A reservation keeps fresh runs out, and goes past others'; a duplicate would do so for nothing."""
    runtime = Runtime(
        "memory://", prefix="p", enabled=True, defaults=None, store_timeout=1, remember=60, notify=Notify()
    )

    @dramatiq.actor(broker=StubBroker(middleware=[]))
    def work() -> None:
        """Do nothing."""

    work.options["singleton"] = Singleton(**options)
    delivery = Delivery("run", 0, "token", (), {}, Carried(**carried), kin)
    policy = runtime.policy(work, delivery.carried)
    assert policy is not None
    request = runtime.request(work, policy, delivery)

    assert request is not None
    assert (request.wait > 0, request.first) == (wait, first)
