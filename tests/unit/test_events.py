"""Events: what listeners get, what the log says, and that neither can hurt a task."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import pytest

from singleflight.errors import StoreUnavailable
from singleflight.events import Event, Kind, Notify
from singleflight.keys import KeyRule
from singleflight.lease import Holder

if TYPE_CHECKING:
    from tests.support.core import Core

SECRET = "hunter2"


def event(kind: Kind, **more: object) -> Event:
    """Return an event about one run."""
    return Event(kind=kind, task="shop.report", key="shop.report:0123", run_id="r1", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", Kind)
def test_ordinary_things_are_logged_at_info_or_below_and_trouble_at_warning(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is woken by a skip, and everybody sees a lost lease."""
    caplog.set_level(logging.DEBUG, "singleflight")

    Notify()(event(kind))

    ordinary = {
        "DEBUG": {Kind.GRANTED, Kind.RELEASED},
        "INFO": {Kind.SKIPPED, Kind.DEFERRED, Kind.REFUSED, Kind.DROPPED, Kind.OBSERVED},
    }
    expected = next((level for level, kinds in ordinary.items() if kind in kinds), "WARNING")
    assert [record.levelname for record in caplog.records] == [expected]


def test_a_log_record_carries_the_event_for_structured_logging(caplog: pytest.LogCaptureFixture) -> None:
    """Key, holder and fence are fields, not text to be parsed."""
    happened = event(Kind.LOST, fence=7, holder=Holder("shop.report", "web-1", 7))

    Notify()(happened)

    assert caplog.records[0].singleflight is happened  # type: ignore[attr-defined]
    assert caplog.records[0].name == "singleflight"


def test_an_event_reads_as_a_sentence() -> None:
    """What, which run, which key, why, who, how long, and when again."""
    happened = event(
        Kind.DEFERRED, reason="running", holder=Holder("shop.report", "web-1", 7), age=12.34, delay=3.0
    )

    assert str(happened) == (
        "shop.report: run r1 deferred, key shop.report:0123, running, "
        "held by shop.report on web-1, pid 7, for 12.3 s, again in 3.0 s"
    )


def test_a_listeners_exception_is_logged_and_the_others_are_still_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A listener is the user's code, and must not break the user's task."""
    heard: list[Event] = []

    def fail(_event: Event) -> None:
        raise ValueError("broken")

    Notify([fail, heard.append, fail, heard.append])(event(Kind.SKIPPED))

    assert len(heard) == 2
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_a_listeners_exception_changes_nothing_for_the_lease(core: Core) -> None:
    """Claim, renewal and release go on."""

    def fail(_event: Event) -> None:
        raise ValueError("broken")

    core.leases.notify._listeners = (fail,)
    lease = core.claim()
    core.pass_time(60)

    assert lease.held
    assert lease.release() is True


def test_an_event_cannot_be_changed_by_a_listener() -> None:
    """The next listener hears the same."""
    with pytest.raises(FrozenInstanceError):
        event(Kind.SKIPPED).run_id = "other"  # type: ignore[misc]


def test_no_argument_of_a_task_is_readable_in_an_event(core: Core, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: keys are made from arguments, and arguments may be secrets."""
    import inspect

    def login(user: str, password: str) -> None:
        """Take two secrets."""

    rule = KeyRule(
        prefix="t", task="shop.login", signature=inspect.signature(login), by="*", by_given=True, name=None
    )
    key = rule.key(("alice", SECRET), {})
    caplog.set_level(logging.DEBUG, "singleflight")

    lease = core.claim("shop.login", key=key, ttl=5.0)
    core.store.cut()
    core.pass_time(10)
    with pytest.raises(StoreUnavailable):
        core.leases.claim(core.request(key=key), patient=True)
    lease.release()

    assert {Kind.GRANTED, Kind.STORE_ERROR, Kind.LOST, Kind.RELEASED} <= set(core.kinds())
    for text in (caplog.text, *map(repr, core.events)):
        assert SECRET not in text
        assert "alice" not in text
