"""Beat ticks in the store: whichever replica gets to a tick first claims it, sends it and confirms it.

There is one record per entry. Its run is the `Tick` that was claimed last: when a replica found it due, which
run it follows, and when its schedule wants to be asked again. A claim says which tick it goes on from
(``after``), so that a replica with an old view is refused and learns what was sent meanwhile. A run that has
not ended was claimed and perhaps never sent: the next claim goes on from it and sends it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from singleflight.celery.beat_pauses import is_pause
from singleflight.celery.schedule_times import FIRST, SKEW, Last, Tick, last_of
from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.events import Kind, about
from singleflight.keys import lease_key
from singleflight.lease import Lease, Outcome, Reason, monotonic
from singleflight.leases.breaker import Breaker
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.log import logger
from singleflight.stores import risks_of
from singleflight.stores.base import Release
from singleflight.stores.view import View

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from singleflight.lease import Busy

LOOK_AGAIN = 0.1
"""Seconds after which a tick that another replica is just sending is looked at again for the first time."""

PAUSED_REST = 5.0
"""Seconds after which a paused entry is looked at again."""

RETRY = 1.0
"""Seconds for which a store that failed is not asked again."""

GRACE = 1.0
"""Seconds after an outage in which nothing is claimed: ticks that were sent are confirmed first."""

CONFIRM = 600.0
"""Seconds for which a tick that was sent is confirmed again and again while the store is away."""

LOOK_AT_CLOCK = 60.0
"""Seconds for which this machine's clock is taken to be as right as it was, unless it steps."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A tick that is this replica's to send."""

    tick: Tick
    lease: Lease

    def last(self, *, ours: bool = True) -> Last:
        """Return what the last tick is once this one is confirmed."""
        tick = self.tick
        return Last(tick.run_id, tick.at, tick.again, tick.rule, ours)


@dataclass(frozen=True, slots=True)
class Later:
    """A tick that is not this replica's to send; ask again after ``delay`` seconds, if a schedule said so."""

    delay: float | None


class Ticks:
    """The ticks of all entries of one app, as this replica sees them through the store."""

    def __init__(
        self, leases: Leases, prefix: str, *, ttl: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Claim through ``leases``; ``ttl`` is for how many seconds a replica that died holds up a tick."""
        self._leases = leases
        self._breaker = Breaker(RETRY)
        self._prefix = prefix
        self._clock_key = lease_key(f"{prefix}:beat:clock", "clock")
        self._ttl = ttl
        self._clock = clock
        self._unanswered: dict[str, tuple[Tick, str, str]] = {}
        self._quiet_until = 0.0
        self._looked_at_clock = self._complained = -LOOK_AT_CLOCK
        self._zero = 0.0

    @property
    def remember(self) -> float:
        """Seconds for which the store knows a tick."""
        return self._leases.store.remember

    def risks(self) -> list[str]:
        """Return what is dangerous about the store, one sentence with its remedy each."""
        return risks_of(self._leases.store)

    @property
    def rests(self) -> float:
        """Seconds for which the store is not asked, because it has just failed or our clock is off."""
        return max(self._breaker.rests, self._quiet_until - monotonic(), 0.0)

    def key(self, name: str) -> str:
        """Return the key of the record of the entry of that name."""
        return tick_key(self._prefix, name)

    def last(self, entry: str) -> Last | Later | None:
        """Read the last tick of an entry; None if the store knows none."""
        if self.rests:
            return Later(self.rests)
        try:
            last = self._last(entry)
        except (StoreUnavailable, ConfigurationError) as error:
            return self._away(error)
        self._back()
        return last

    def begin(self, entry: str, seen: datetime, again: datetime | None) -> Last | Later | None:
        """Note when an entry was first seen, unless a replica has done so; return what stands there."""
        zero = Tick(entry, None, seen, again, FIRST)
        try:
            if self.rests or self._clock_is_off():
                return Later(self.rests)
            # Makes the record if there is none, and changes no other: the first one counts.
            self._leases.store.release(Release(self.key(entry), zero.run_id, 0, "", Outcome.FINISHED))
            last = self._last(entry)
        except (StoreUnavailable, ConfigurationError) as error:
            return self._away(error)
        self._back()
        return last

    def _last(self, entry: str) -> Last | None:
        view = View(self._leases.store.peek(self.key(entry)))
        if not view.run_id:
            return None
        return last_of(entry, view.run_id, view.started or 0.0, ended=view.over(view.run_id))

    def claim(self, tick: Tick, after: str) -> Claimed | Last | Later:
        """Claim a tick that goes on from ``after``, or return what was claimed or sent meanwhile."""
        if self.rests:
            return Later(self.rests)
        try:
            if self._breaker.failure:
                self._store_time()
                self._back()
                self._quiet_until = monotonic() + GRACE
            if self.rests or self._clock_is_off():
                return Later(self.rests)
            tick, answer = self._ask(tick, after)
        except (StoreUnavailable, ConfigurationError) as error:
            return self._away(error)
        self._back()
        if isinstance(answer, Lease):
            return Claimed(tick, answer)
        return self._refused(tick, answer)

    def _refused(self, tick: Tick, answer: Busy) -> Last | Later:
        if answer.reason in (Reason.FINISHED, Reason.SUPERSEDED):
            return last_of(tick.entry, answer.run_id, answer.since, ended=answer.ended)
        if is_pause(answer.holder):
            return Later(min(answer.retry_after, PAUSED_REST))
        # Soon, because confirmations come soon; then ever more rarely, until the claim has lapsed.
        held_for = self._ttl - answer.retry_after
        return Later(max(LOOK_AGAIN / 2, min(answer.retry_after, max(LOOK_AGAIN, held_for))))

    def confirm(self, claimed: Claimed) -> None:
        """Have the store know that a tick was sent."""
        lease = claimed.lease
        if not lease.release(Outcome.FINISHED):
            sent = Request(lease.key, lease.task, lease.run_id, lease.token, ttl=CONFIRM)
            self._leases.disown(sent, Outcome.FINISHED)

    def tell_missed(self, claimed: Claimed, missed: list[datetime]) -> None:
        """Report planned times that come too late and are left out."""
        first, last = missed[0].isoformat(), missed[-1].isoformat()
        which = (
            f"planned for {first}" if len(missed) == 1 else f"{len(missed)} planned times, {first} to {last}"
        )
        self._leases.notify(about(claimed.lease, Kind.MISSED, f"{which}: left out"))

    def _ask(self, tick: Tick, after: str) -> tuple[Tick, Lease | Busy]:
        # A store that hangs may grant a claim after we gave up; by the same token it is ours next time.
        token = new_token()
        unanswered = self._unanswered.pop(tick.entry, None)
        if unanswered is not None:
            asked, used, went_on_from = unanswered
            if went_on_from == after and asked.again is not None and tick.at < asked.again:
                tick, token = asked, used
        request = Request(
            key=self.key(tick.entry),
            task=f"beat:{tick.entry}",
            run_id=tick.run_id,
            token=token,
            ttl=self._ttl,
            after=after,
            # A replica that hangs, waiting for its broker perhaps, must not keep the tick from the others.
            max_hold=self._ttl,
        )
        try:
            return tick, self._leases.claim(request, anyway=True)
        except StoreUnavailable:
            self._unanswered[tick.entry] = tick, token, after
            raise

    def _clock_is_off(self) -> bool:
        """Return whether this replica must not judge what is due; looks at the store's clock now and then."""
        zero = self._clock() - monotonic()
        if monotonic() - self._looked_at_clock < LOOK_AT_CLOCK and abs(zero - self._zero) < 1:
            return False
        off = abs(self._clock() - self._store_time())
        if off <= SKEW.total_seconds():
            self._looked_at_clock, self._zero = monotonic(), zero
            return False
        self._quiet_until = monotonic() + SKEW.total_seconds()
        if monotonic() - self._complained >= LOOK_AT_CLOCK:
            self._complained = monotonic()
            logger.warning(
                "singleflight: beat sends nothing, for this machine's clock is %.0f s off the store's; "
                "set the wrong one right",
                off,
            )
        return True

    def _store_time(self) -> float:
        key, store = self._clock_key, self._leases.store
        look = store.peek(key)
        if look is None:
            # Only a record shows the time; a release makes one.
            store.release(Release(key, run_id="clock", attempt=0, token="", outcome=Outcome.FINISHED))
            look = store.peek(key)
        return self._clock() if look is None else View(look).now

    def _away(self, error: Exception) -> Later:
        self._breaker.failed(error)
        if self._breaker.is_news():
            logger.warning("singleflight: beat sends nothing until the store answers: %s", error)
        return Later(self.rests)

    def _back(self) -> None:
        if self._breaker.failure:
            logger.warning("singleflight: the store answers again: beat sends what is overdue, once")
        self._breaker.answered()


def tick_key(prefix: str, entry: str) -> str:
    """Return the key of the record of the entry of that name, for an app whose keys start with a prefix."""
    # A prefix of its own, because any name may be that of a user's lease or task, "beat:x" too.
    return lease_key(f"{prefix}:beat", entry)


def give_back(lease: Lease) -> None:
    """End the claim of a tick that was not sent: it is still to be sent."""
    lease.began = False
    lease.release(Outcome.REQUEUED)
