"""Events: what listeners get, what the log says, and that neither can hurt a task."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import pytest

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.events import Event, Kind, Notify, levels_of
from singleflight.key_rules import KeyRule
from singleflight.lease import Busy, Holder, Reason
from singleflight.leases.claiming import Request

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


HERE = Holder("shop.report", "web-1", 7)


@pytest.mark.parametrize(
    ("busy", "said"),
    [
        (Busy(Reason.RUNNING, "r0", 5, HERE, 0.0), "running, held by shop.report on web-1, pid 7, for 3.0 s"),
        (
            Busy(Reason.SAME_RUN, "r1", 5, HERE, 0.0),
            "same_run, another delivery of this run is alive, held by shop.report on web-1, pid 7, for 3.0 s",
        ),
        (Busy(Reason.FINISHED, "r1", 0, HERE, 0.0), "finished, this run has ended already"),
        (
            Busy(Reason.WINDOW, "r0", 5, HERE, 0.0),
            "window, too soon after the last start, which was 3.0 s ago",
        ),
        (Busy(Reason.RESERVED, "r0", 5, HERE, 0.0), "reserved, a run that has waited longer goes first"),
        (Busy(Reason.QUEUED, "r0", 5, HERE, 0.0), "queued, another run waits already"),
        (Busy(Reason.SUPERSEDED, "r0", 5, HERE, 0.0), "superseded, somebody else went on"),
    ],
    ids=lambda value: str(value.reason) if isinstance(value, Busy) else "",
)
def test_each_reason_has_its_own_sentence(
    core: Core, monkeypatch: pytest.MonkeyPatch, busy: Busy, said: str
) -> None:
    """Where nobody has the key any more, nobody is said to hold it: not in the log, and not in the error."""
    heard: list[Event] = []
    core.leases.notify._listeners = (heard.append,)
    monkeypatch.setattr("time.time", lambda: 3.0)
    core.leases.tell(
        Kind.SKIPPED, Request("p:night:{00112233445566778899aabbccddeeff}", "night", "r1", "token"), busy
    )

    assert str(heard[0]) == f"night: run r1 skipped, key night:00112233, {said}"
    assert ("held" in str(heard[0])) is (heard[0].holder is not None) is busy.holds
    assert (" by shop.report" in str(busy)) is busy.holds


def test_what_was_not_sent_says_why_too() -> None:
    """A publisher's log line names the reason as the worker's does."""
    happened = event(Kind.SKIPPED, reason="not sent: queued")

    assert str(happened).endswith("not sent: queued, another run waits already")


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
        core.leases.claim(core.request(key=key), anyway=True)
    lease.release()

    assert {Kind.GRANTED, Kind.STORE_ERROR, Kind.LOST, Kind.RELEASED} <= set(core.kinds())
    for text in (caplog.text, *map(repr, core.events)):
        assert SECRET not in text
        assert "alice" not in text


# --- levels -------------------------------------------------------------------------------------------


def test_the_level_of_each_kind_of_line_can_be_set(caplog: pytest.LogCaptureFixture) -> None:
    """Where logs are kept from WARNING on, skips can leave a line; what is too much can be turned down."""
    levels = levels_of({"skipped": "warning", Kind.GRANTED: logging.INFO, "took_over": "DEBUG"})
    notify, usual = Notify(levels=levels), Notify()
    caplog.set_level(logging.WARNING, logger="singleflight")

    for kind in (Kind.SKIPPED, Kind.GRANTED, Kind.TOOK_OVER, Kind.LOST):
        notify(Event(kind=kind, task="shop.nightly", key="k", run_id="ours"))
        usual(Event(kind=kind, task="shop.nightly", key="k", run_id="usual"))

    said = [(record.singleflight.run_id, record.singleflight.kind) for record in caplog.records]  # type: ignore[attr-defined]
    assert said == [
        ("ours", Kind.SKIPPED),
        ("usual", Kind.TOOK_OVER),
        ("ours", Kind.LOST),
        ("usual", Kind.LOST),
    ]
    assert notify.heeds(Kind.SKIPPED)
    assert not usual.heeds(Kind.SKIPPED)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"skiped": "INFO"}, "'skiped' is no event; did you mean 'skipped'"),
        ({"skipped": "LOUD"}, "'LOUD' is no level"),
        ({"skipped": True}, "True is no level"),
        ("WARNING", "must be a dict"),
    ],
)
def test_wrong_levels_are_refused_by_name(value: object, words: str) -> None:
    """With the setting's name, and what to write."""
    with pytest.raises(ConfigurationError, match=f"log_levels.*{words}"):
        levels_of(value)
