"""Occurrences: equal for the same planned instant, whoever sends it, and refused where they could differ."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from singleflight import Singleton
from singleflight.dramatiq import install
from singleflight.dramatiq.occurrences import every, normal, periodiq

PARIS = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    "instant",
    [
        datetime(2026, 1, 31, 6, tzinfo=UTC),
        datetime(2026, 1, 31, 7, tzinfo=PARIS),
        "2026-01-31T06:00:00+00:00",
        "2026-01-31T07:00:00+01:00",
        "2026-01-31T06:00:00Z",
    ],
)
def test_one_instant_is_one_occurrence_in_every_time_zone(instant: Any) -> None:
    """Two schedulers in different time zones mean the same occurrence."""
    assert normal(instant) == "2026-01-31T06:00:00+00:00"


@pytest.mark.parametrize("instant", [datetime(2026, 1, 31, 6), "2026-01-31T06:00", "noon", 5, True])  # noqa: DTZ001
def test_what_is_no_instant_is_refused(instant: Any) -> None:
    """A time without a zone is another instant on every machine."""
    with pytest.raises(ValueError, match="is not an instant; give a datetime with a time zone"):
        normal(instant)


def test_periodiqs_plan_is_taken_to_the_minute() -> None:
    """Periodiq writes its local time and, after a restart, the seconds: neither counts."""
    planned = ["2026-01-31 06:30:00+00:00", "2026-01-31 07:30:12+01:00"]
    seen = {periodiq(_message(scheduled_at=text)) for text in planned}

    assert seen == {datetime(2026, 1, 31, 6, 30, tzinfo=UTC)}
    assert periodiq(_message()) is None


def test_messages_of_one_period_are_one_occurrence() -> None:
    """What is sent between two steps of the schedule belongs to the earlier one."""
    step = every(timedelta(minutes=1))
    times = [datetime(2026, 1, 31, 6, 30, second, tzinfo=UTC) for second in (0, 59)]
    next_one = datetime(2026, 1, 31, 6, 31, tzinfo=UTC)

    assert {step(_message(time)) for time in times} == {times[0]}
    assert step(_message(next_one)) == next_one


@pytest.mark.parametrize("period", [0, -1, timedelta(0), float("nan")])
def test_a_period_must_be_longer_than_nothing(period: Any) -> None:
    """A wrong period is refused where it is written."""
    with pytest.raises(ValueError, match="write every"):
        every(period)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"singleton": True, "occurrence": "hourly"}, "not a function of the message"),
        ({"occurrence": every(60)}, "write singleton=True beside it"),
    ],
)
def test_a_wrong_declaration_is_refused(options: dict[str, Any], remedy: str) -> None:
    """An occurrence that could not be kept is refused at declaration."""
    broker = StubBroker(middleware=[])
    install(broker)

    with pytest.raises(ValueError, match=remedy):
        dramatiq.actor(broker=broker, actor_name="a", **options)(lambda: None)


def test_an_occurrence_for_an_actor_without_a_lease_is_refused_by_send() -> None:
    """Nobody would look at it, so the caller is told, and nothing is sent."""
    broker = StubBroker(middleware=[])
    install(broker)
    actor = dramatiq.actor(broker=broker, actor_name="a")(lambda: None)

    with pytest.raises(ValueError, match="if its actor is declared for it"):
        actor.send_with_options(occurrence=datetime.now(UTC))
    assert broker.queues["default"].qsize() == 0


def test_an_occurrence_runs_once_also_after_it_has_ended() -> None:
    """A second message for one instant is dropped, the next instant runs, a retry is no second message."""
    broker = StubBroker(
        middleware=[dramatiq.middleware.Retries(max_retries=2, min_backoff=10, max_backoff=20)]
    )
    install(broker)
    runs: list[str] = []

    def body() -> None:
        runs.append("run")
        if len(runs) == 1:
            raise RuntimeError("retried")

    actor = dramatiq.actor(broker=broker, actor_name="a", singleton=Singleton(on_conflict="defer"))(body)
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    for instant in ("2026-01-31T06:00:00Z", "2026-01-31T07:00:00+01:00", "2026-01-31T07:00:00Z"):
        actor.send_with_options(occurrence=instant)
        broker.join("default", fail_fast=False, timeout=15_000)
    worker.stop(timeout=5_000)

    assert len(runs) == 3


def _message(sent: datetime = datetime(2026, 1, 31, tzinfo=UTC), **options: Any) -> dramatiq.Message[Any]:
    timestamp = int(sent.timestamp() * 1000)
    return dramatiq.Message("default", "a", (), {}, options, message_timestamp=timestamp)
