"""Occurrences: messages that several schedulers send for one planned instant are one run.

A message says so itself, ``send_with_options(occurrence=instant)``, or its actor works it out of each
message, ``@dramatiq.actor(singleton=True, occurrence=every(60))``. The first message of an occurrence runs;
the others wait for it and are dropped, whatever their scheduler's time zone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from singleflight.errors import ConfigurationError
from singleflight.tasks.message import tell_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from dramatiq import Message
    from dramatiq.broker import MessageProxy

    AnyMessage = Message[Any] | MessageProxy
    Instant = datetime | str
    Occurrence = Callable[[AnyMessage], Instant | None]

OPTION = "singleflight_occurrence"
"""The message option with the instant that a message was sent for."""

MINUTE = 60.0


def normal(instant: object) -> str:
    """Return an instant as text in UTC, equal for equal instants.

    Args:
        instant: an aware `datetime`, or text in ISO format with an offset.

    Raises:
        ConfigurationError: for anything else: two schedulers would disagree about it.
    """
    try:
        when = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    except ValueError:
        when = None
    if not isinstance(when, datetime) or when.utcoffset() is None:
        raise ConfigurationError(
            f"occurrence={instant!r} is not an instant; give a datetime with a time zone, "
            "such as datetime.now(UTC), or text such as '2026-01-31T06:00:00+00:00'"
        )
    return when.astimezone(UTC).isoformat()


def every(period: float | timedelta) -> Occurrence:
    """Make one occurrence of all messages whose sending falls into the same period.

    For schedulers that call ``actor.send`` on time and say nothing of the plan: APScheduler (and so
    dramatiq-crontab), cron. The schedulers' clocks may differ by less than the period.

    Args:
        period: seconds or a `timedelta`: the schedule's step, 60 for a crontab. Counted from midnight UTC of
            1 January 1970.

    Raises:
        ConfigurationError: if it is not positive.
    """
    seconds = period.total_seconds() if isinstance(period, timedelta) else period
    if not seconds > 0:
        raise ConfigurationError(f"every({period!r}): a period is longer than nothing; write every(60)")

    def occurrence(message: AnyMessage) -> Instant:
        sent = message.message_timestamp / 1000  # kept by retries and deferrals
        return datetime.fromtimestamp(sent // seconds * seconds, UTC)

    return occurrence


def periodiq(message: AnyMessage) -> Instant | None:
    """Return the minute that periodiq planned a message for; None for a message that it did not send.

    A restarted periodiq sends again within the minute, with other seconds: they do not count.
    """
    planned = message.options.get("scheduled_at")
    if planned is None:
        return None
    seconds = datetime.fromisoformat(planned).timestamp()
    return datetime.fromtimestamp(seconds // MINUTE * MINUTE, UTC)


def of_message(message: AnyMessage, declared: object) -> str | None:
    """Return the occurrence that a message stands for, by its own word or else its actor's; None: none."""
    if OPTION in message.options:
        said = message.options[OPTION]
        try:
            return None if said is None else normal(said)
        except ConfigurationError:
            tell_once(message.actor_name, "its occurrence is no instant")
    instant = declared(message) if callable(declared) else None
    return None if instant is None else normal(instant)
