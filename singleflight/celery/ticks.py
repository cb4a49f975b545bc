"""Beat ticks in the store: whichever replica gets to a tick first claims it, sends it and confirms it.

There is one record per entry. Its run is the tick that was claimed last, ``<entry>@<due instant, UTC>``, so
replicas with the same view of the last tick name the next one alike; a claim also says which tick it goes on
from (``after``), so a replica with an old view is refused. A record whose run has not ended is a tick that
was claimed and perhaps never sent: it is claimed again under its own name.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.schedules import schedule as interval

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.events import Kind, Notify, logger
from singleflight.flight import Leases, Request, new_token
from singleflight.keys import lease_key
from singleflight.lease import Lease, Outcome, Reason, monotonic
from singleflight.stores.base import INFINITE

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.events import Event
    from singleflight.lease import Busy

LOOK_AGAIN = 0.1
"""Seconds after which a tick is looked at again that another replica is just sending."""

RETRY = 1.0
"""Seconds for which a store that failed is not asked again."""

SKEW = 5.0
"""Seconds by which this machine's clock and the store's may differ."""

SAY_AGAIN = 60.0
"""Seconds between two warnings about a clock that is off."""

UNSENT = datetime(2000, 1, 1, tzinfo=UTC)
"""The last run of an entry whose last tick was claimed and never confirmed: it is overdue."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A tick that was sent, here or elsewhere: its name in the store ("": none known), and its last run."""

    run_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Claimed:
    """A tick that is this replica's to send; ``sent`` is what it will have been."""

    entry: str
    lease: Lease
    sent: Sent


@dataclass(frozen=True, slots=True)
class Later:
    """A tick that nobody can decide about yet; look again after ``delay`` seconds."""

    delay: float


def tick_id(entry: str, due: datetime) -> str:
    """Return the run id of the tick of an entry that is due at an instant."""
    return f"{entry}@{due.astimezone(UTC).isoformat()}"


def due_of(run_id: str) -> datetime | None:
    """Return the instant in a tick's run id; None if a foreign text stands there."""
    try:
        return datetime.fromisoformat(run_id.rpartition("@")[2]).astimezone(UTC)
    except ValueError:
        return None


def task_id(key: str, run_id: str) -> str:
    """Return the id under which a tick's message is published, the same however often it is sent."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{key} {run_id}"))


def in_utc(moment: datetime) -> datetime:
    """Return a moment as UTC; Celery takes a naive one for UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def next_due(schedule: Any, last: datetime) -> datetime:
    """Return the first instant of a schedule after its last run (aware, in the schedule's zone), as UTC.

    No clock takes part: the schedule is asked as if it were still the moment of the last run.
    """
    if period := period_of(schedule):
        return in_utc(last) + period
    frozen = object.__new__(type(schedule))  # copy.copy would lose the app of Celery's schedules
    frozen.__dict__.update(schedule.__dict__)
    frozen.now = lambda: last
    remaining: timedelta = frozen.remaining_estimate(last)
    return in_utc(last) + remaining


def period_of(schedule: Any) -> timedelta:
    """Return the time between two ticks of an interval that counts from its last run; else zero."""
    if isinstance(schedule, interval) and not schedule.relative:
        return max(timedelta(seconds=schedule.seconds), timedelta(milliseconds=1))
    return timedelta(0)


def last_run(schedule: Any, due: datetime | None, started: datetime | None) -> datetime:
    """Return what counts as the last run after a tick, the same for every replica.

    ``started`` is when the tick was claimed, on the store's clock. An interval goes on from the due instant
    unless the next one has passed already, so it does not drift and makes up for an outage once. Nothing
    goes on from before its due instant, or a replica whose clock is ahead would make others send again.
    """
    if due is None or started is None:
        return due or started or datetime.now(UTC)
    if due - started > timedelta(seconds=SKEW):
        return started
    return due if started < due + period_of(schedule) else max(due, started)


class Ticks:
    """The ticks of all entries of one app, as this replica sees them through the store."""

    def __init__(
        self, leases: Leases, prefix: str, *, ttl: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Claim through ``leases``; ``ttl`` (seconds) is how long a replica that died blocks a tick."""
        self._notify = _OncePerOutage(leases.notify)
        self._leases = Leases(leases.store, self._notify)
        # Another prefix: what a lease or task is called is the user's, and "beat:x" may be one of them.
        self._prefix = f"{prefix}:beat"
        self._ttl = ttl
        self._clock = clock
        self._tokens: dict[str, tuple[str, str]] = {}
        self._rests_until = 0.0
        self._complained = -SAY_AGAIN

    @property
    def rests(self) -> float:
        """Seconds for which the store need not be asked, because it has just failed."""
        return max(0.0, self._rests_until - monotonic())

    def key(self, entry: str) -> str:
        """Return the key of an entry's record."""
        return lease_key(self._prefix, entry)

    def last(self, entry: str, schedule: Any) -> Sent | Later | None:
        """Read an entry's last tick; None if the store knows none."""
        if self.rests:
            return Later(self.rests)
        try:
            look = self._leases.store.peek(self.key(entry))
        except (StoreUnavailable, ConfigurationError) as error:
            return self._away(error)
        self._back()
        if look is None or not look.record.run_id:
            return None
        record = look.record
        ended = any(run.run_id == record.run_id and run.attempt >= INFINITE for run in record.runs)
        if not ended:
            return Sent("", UNSENT)
        return _sent(schedule, record.run_id, record.started_ms / 1000)

    def claim(self, entry: str, schedule: Any, due: datetime, after: str) -> Claimed | Sent | Later:
        """Ask for the tick that is due: it is ours, or the last one that was sent, or wait."""
        if self.rests:
            return Later(self.rests)
        run_id = tick_id(entry, due)
        try:
            answer = self._ask(entry, run_id, after)
            if not isinstance(answer, Lease) and _unfinished(answer):
                # Its replica died between claim and confirmation: the same run, so the same task id.
                run_id = answer.run_id
                answer = self._ask(entry, run_id, after)
        except (StoreUnavailable, ConfigurationError) as error:
            return self._away(error)
        self._back()
        if isinstance(answer, Lease):
            return self._granted(entry, answer, schedule)
        if answer.reason in (Reason.FINISHED, Reason.SUPERSEDED) and answer.ended:
            return _sent(schedule, answer.run_id, answer.since)
        return Later(min(LOOK_AGAIN, max(answer.retry_after, LOOK_AGAIN / 2)))

    def _ask(self, entry: str, run_id: str, after: str) -> Lease | Busy:
        # A store that hung may grant a claim long after we gave up: asked again by the same token, it says so.
        asked, token = self._tokens.pop(entry, ("", ""))
        if asked != run_id:
            token = new_token()
        request = Request(
            key=self.key(entry), task=f"beat:{entry}", run_id=run_id, token=token, ttl=self._ttl, after=after
        )
        try:
            return self._leases.claim(request, patient=True)
        except StoreUnavailable:
            self._tokens[entry] = run_id, token
            raise

    def _granted(self, entry: str, lease: Lease, schedule: Any) -> Claimed | Later:
        # A tick that is claimed again keeps its start, so the fence (the store's microseconds) is asked too.
        started = lease.granted.started_ms / 1000
        off = min(abs(self._clock() - started), abs(self._clock() - lease.fence / 1_000_000))
        if off > SKEW:
            give_back(lease)
            if monotonic() - self._complained >= SAY_AGAIN:
                self._complained = monotonic()
                logger.warning(
                    "singleflight: beat sends nothing: this machine's clock is %.0f s off the store's; "
                    "set the wrong one right (NTP)",
                    off,
                )
            return Later(SKEW)
        return Claimed(entry, lease, _sent(schedule, lease.run_id, started))

    def _away(self, error: Exception) -> Later:
        self._rests_until = monotonic() + RETRY
        if not self._notify.away:
            logger.warning("singleflight: beat sends nothing until the store answers: %s", error)
        self._notify.away = True
        return Later(RETRY)

    def _back(self) -> None:
        if self._notify.away:
            logger.warning("singleflight: the store answers again; beat goes on, each overdue entry once")
        self._notify.away = False


class _OncePerOutage(Notify):
    """Passes events on, and of those that say that the store is away only the first of each outage."""

    def __init__(self, notify: Notify) -> None:
        self._pass_on = notify
        self.away = False

    def __call__(self, event: Event) -> None:
        if not (self.away and event.kind is Kind.STORE_ERROR):
            self._pass_on(event)


def give_back(lease: Lease) -> None:
    """End a claim whose tick was not sent, so that it is still to be sent."""
    lease.began = False
    lease.release(Outcome.REQUEUED)


def _unfinished(busy: Busy) -> bool:
    return busy.reason in (Reason.FINISHED, Reason.SUPERSEDED) and not busy.ended and bool(busy.run_id)


def _sent(schedule: Any, run_id: str, since: float | None) -> Sent:
    started = datetime.fromtimestamp(since, UTC) if since else None
    return Sent(run_id, last_run(schedule, due_of(run_id), started))
