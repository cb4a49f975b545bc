"""What a delivery asks the store for: turns for those that must run, and for nobody who keeps others out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Singleton
from singleflight.errors import StoreUnavailable
from singleflight.key_rules import rule_of
from singleflight.policy import resolve
from singleflight.stores.base import Waits
from singleflight.tasks.delivery import Delivery
from singleflight.tasks.message import Carried

if TYPE_CHECKING:
    from singleflight.leases.claiming import Request
    from tests.support.core import Core

OFTEN: dict[str, Any] = {"deferrals": 5, "since": time.time()}
REDELIVERED: dict[str, Any] = {"redelivered": True}


def nothing() -> None:
    """Do nothing."""


def asked(delivery: Delivery, **options: Any) -> Request:
    """Return what a delivery of a task with such options asks for."""
    policy = resolve(None, Singleton(**options))
    rule = rule_of("p", "task", nothing, policy.by, policy.name, by_given=policy.by_given)
    request = delivery.request(rule, policy, observing=False)
    assert request is not None
    return request


def delivery(carried: dict[str, Any], **fields: Any) -> Delivery:
    """Return the arrival of a run whose message carries this."""
    return Delivery("run", fields.pop("attempt", 0), "token", (), {}, Carried(**carried), **fields)


@pytest.mark.parametrize(
    ("options", "carried", "fields", "wait", "first"),
    [
        ({}, {}, {}, False, False),
        ({}, OFTEN, {}, False, False),  # kept away by outages of the store: it may yet be a duplicate
        ({}, OFTEN, REDELIVERED, True, True),
        ({}, OFTEN, {"attempt": 1}, True, True),
        ({}, {**OFTEN, "must_run": True}, {}, True, True),
        ({"on_conflict": "join", "by": ()}, OFTEN, {}, False, False),
        ({"on_conflict": "join", "by": ()}, {**OFTEN, "joins": "other"}, REDELIVERED, False, False),
        ({"on_conflict": "defer"}, {}, {}, False, False),
        ({"on_conflict": "defer"}, OFTEN, {}, True, True),
        ({"on_conflict": "coalesce"}, {}, {}, True, False),
        ({"at_most_one": "waiting_or_running"}, OFTEN, {}, False, False),
        ({"at_most_one": "waiting_or_running"}, {}, REDELIVERED, True, False),
    ],
)
def test_only_what_must_run_asks_for_a_turn(
    options: dict[str, Any], carried: dict[str, Any], fields: dict[str, Any], wait: bool, first: bool
) -> None:
    """A reservation keeps fresh runs out, and goes past others'; a duplicate would do so for nothing."""
    request = asked(delivery(carried, **fields), **options)

    assert (request.wait > 0, request.waits is Waits.FIRST) == (wait, first)


@pytest.mark.parametrize(
    ("carried", "fields", "keeps"),
    [
        ({}, {}, False),
        ({}, REDELIVERED, True),
        ({}, {"attempt": 1}, True),
        ({"must_run": True}, {}, True),  # deferred, when it was a redelivery
    ],
)
def test_a_copy_whose_claim_got_no_answer_keeps_the_window_of_its_run(
    core: Core, carried: dict[str, Any], fields: dict[str, Any], keeps: bool
) -> None:
    """Only a run that cannot have begun gives its window back when its claim is taken back."""
    request = asked(delivery(carried, **fields), window=3600)
    core.store.deafen()
    with pytest.raises(StoreUnavailable):
        core.leases.claim(request)
    core.store.mend()
    core.pass_time(1)

    record = core.store.record(request.key)
    assert not record.held
    assert (record.started_ms > 0) == keeps
