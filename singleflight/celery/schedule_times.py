"""What a beat tick is called, and what stands in its name; pure.

Nothing here asks a schedule: what a schedule says may depend on more than the clock and its last run.
"""

from __future__ import annotations

import math
import re
import uuid
import zlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

SKEW = timedelta(seconds=5)
"""By how much a replica's clock and the store's may differ."""

FIRST = "first"
"""Stands where a tick's rule does, if nothing was sent and only the first sight of an entry is noted."""

FAR = 10 * 365 * 86400.0
"""Seconds: a schedule that wants to be asked later than this is asked then."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of an entry: which run it follows, and what its schedule said when it was due."""

    entry: str
    after: datetime | None
    """The last run before it; None if its entry never ran."""
    at: datetime
    """When a replica found it due: the last run once it is sent."""
    again: datetime | None = None
    """When the schedule wants to be asked again; None if it did not say."""
    rule: str = ""
    """The `rule_of` the schedule that said so."""

    @property
    def run_id(self) -> str:
        """The text that stands for this tick in the store; all of it can be read back."""
        told = f"{_text(self.after)}/{_text(self.again)}/{self.rule}"
        return f"{self.entry}@{told}@{_text(self.at)}"

    def task_id(self, key: str) -> str:
        """Return the id under which its message is published.

        It is made of the run that the tick follows, so that it is the same for every replica that sends it.
        """
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{key} {_text(self.after or self.at)}"))


@dataclass(frozen=True, slots=True)
class Last:
    """The last tick of an entry, as far as this replica knows."""

    run_id: str
    """What the store shows; "" if no replica has told the store anything."""
    at: datetime | None
    """The last run; None if the entry never ran."""
    again: datetime | None = None
    rule: str = ""
    ours: bool = False
    """True if this replica sent it."""
    unsent: Tick | None = None
    """A later tick that a replica claimed, and perhaps did not live to send."""

    @property
    def sent(self) -> bool:
        """True if a message was published for it: the first sight of an entry has none."""
        return bool(self.run_id) and self.rule != FIRST

    def then(self, found: Last) -> Last:
        """Return what is known once the store has shown something else."""
        if self.run_id and found.unsent is None and not found.sent:
            # A replica that came after the store lost its records saw the entry for the first time.
            return replace(self, run_id=found.run_id)
        return found

    def wait(self, now: datetime, rule: str) -> float:
        """Return for how many seconds a schedule that says that it is due must be left alone.

        The replica that sent this tick was told when to ask again. It keeps to that by Celery's own heap; the
        others must not ask sooner than it.
        """
        if self.ours or self.again is None or self.at is None or rule != self.rule:
            return 0.0
        # A clock that was set back may be far behind.
        return max(0.0, min(self.again - now, self.again - self.at).total_seconds())

    def next(self, entry: str, now: datetime, wait: object, rule: str) -> Tick:
        """Return the tick that is due now."""
        unsent = self.unsent
        if unsent is not None and unsent.again is not None and now < unsent.again:
            return unsent  # its rhythm goes on as if it had been sent in time
        at = now if self.at is None else max(now, self.at + timedelta(microseconds=1))
        return Tick(entry, self.at, at, later(now, wait), rule)


def tick_of(entry: str, run_id: str) -> Tick | None:
    """Read a tick from its text; None if that is foreign."""
    head, _, at = run_id.rpartition("@")
    try:
        found = in_utc(datetime.fromisoformat(at))
    except ValueError:
        return None
    try:
        after, again, rule = head.rpartition("@")[2].split("/")
        return Tick(entry, _instant(after), found, _instant(again), rule)
    except ValueError:
        return Tick(entry, None, found)


def last_of(entry: str, run_id: str, since: float | None, *, ended: bool) -> Last:
    """Return what a record says of an entry: its run, when that started, and whether it has ended."""
    tick = tick_of(entry, run_id)
    if tick is None:  # written by hand, or by another version
        return Last(run_id, datetime.fromtimestamp(since, UTC) if since else None)
    if ended:
        return Last(run_id, tick.at, tick.again, tick.rule)
    return Last(run_id, tick.after, unsent=tick)


def in_utc(moment: datetime) -> datetime:
    """Return a moment as UTC; Celery takes a naive one for UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def in_zone_of(entry: Any, moment: datetime) -> datetime:
    """Return a moment in the zone that an entry's schedule counts in, because Celery compares wall clocks."""
    zone = entry.default_now().tzinfo
    return moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)


def seconds_of(wait: Any) -> float | None:
    """Return for how many seconds a schedule wants not to be asked; None if it does not say."""
    if isinstance(wait, bool) or not isinstance(wait, int | float) or math.isnan(wait):
        return None
    return min(max(0.0, wait), FAR)


def later(moment: datetime, wait: Any) -> datetime | None:
    """Return the moment at which a schedule wants to be asked again; None if it does not say."""
    seconds = seconds_of(wait)
    return None if seconds is None else moment + timedelta(seconds=seconds)


def rule_of(schedule: Any) -> str:
    """Return a short text that differs when a schedule's settings do, as far as its repr tells them."""
    kind = type(schedule)
    try:
        told = _ADDRESS.sub("", repr(schedule))
        zone = str(getattr(schedule, "tz", ""))
    except Exception:  # noqa: BLE001 - a schedule of the user's own; it is only not told from others of its class
        told = zone = ""
    return f"{zlib.crc32(f'{kind.__qualname__} {told} {zone}'.encode()):08x}"


def _text(moment: datetime | None) -> str:
    return "" if moment is None else in_utc(moment).isoformat().replace("+00:00", "Z")


def _instant(text: str) -> datetime | None:
    return in_utc(datetime.fromisoformat(text)) if text else None
