"""Entries of beat's schedule that somebody has paused.

A pause is a claim of the entry's next tick by somebody who does not send it: a lease on the entry's own
record, for as long as the pause lasts, whose holder is who paused it. So no replica can claim a tick
meanwhile, none asks for more than without pauses, and afterwards the entry goes on from its last run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from singleflight.celery.schedule_times import FIRST, Tick, last_of
from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.lease import Granted, Holder, Outcome
from singleflight.options import LONGEST
from singleflight.stores.base import Claim, Release
from singleflight.stores.view import View

if TYPE_CHECKING:
    from singleflight.stores.base import Store

PAUSED = "paused"
"""What a pause's tick has in place of a rule, and the first word of its holder."""

TOKEN = "paused"  # noqa: S105 - the token of every pause, so that anybody can end it
MOST_NOTED = 190
"""Characters of a note."""

LOOK_AGAIN = 0.05
SENDING = 30.0
"""Seconds for which a pause waits for a replica that is just sending."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Why an entry is not sent."""

    owner: str
    note: str
    until: datetime | None
    """None: until it is resumed."""

    def __str__(self) -> str:
        note = f": {self.note}" if self.note else ""
        until = f" until {self.until:%Y-%m-%d %H:%M:%S}Z" if self.until else ""
        return f"paused by {self.owner}{until}{note}"


def is_pause(holder: Holder | None) -> bool:
    """Return whether the holder of an entry's record is somebody who paused it."""
    return holder is not None and holder.task.partition(":")[0] == PAUSED


def pause_of(view: View) -> Pause | None:
    """Return the pause of an entry, if there is one."""
    holder = view.holder
    if not view.running or holder is None or not is_pause(holder):
        return None
    left = view.time_left or 0.0
    until = datetime.fromtimestamp(view.now + left, UTC) if left < LONGEST / 2 else None
    return Pause(holder.host, holder.task.partition(":")[2], until)


def pause(
    store: Store, key: str, name: str, now: datetime, *, owner: str, note: str, seconds: float | None
) -> Pause:
    """Keep an entry from being sent, until it is resumed or for some seconds; return the pause.

    Raises:
        ConfigurationError: if somebody else has paused it already.
        StoreUnavailable: if the store does not answer, or a replica has been sending all the time.
    """
    holder = Holder(f"{PAUSED}:{note[:MOST_NOTED]}", owner, 0)
    ttl_ms = round((seconds or LONGEST) * 1000)
    end = time.monotonic() + SENDING
    while time.monotonic() < end:
        view = View(store.peek(key))
        if found := pause_of(view):
            if view.holder != holder:
                raise ConfigurationError(f"{name} is {found}; resume it first")
            return found
        if not view.run_id:  # an interval has to know what it goes on from
            first = Tick(name, None, now, None, FIRST)
            store.release(Release(key, first.run_id, 0, "", Outcome.FINISHED))
            continue
        last = last_of(name, view.run_id, view.started or 0.0, ended=view.over(view.run_id))
        at = now if last.at is None else max(now, last.at + timedelta(microseconds=1))
        run_id = Tick(name, last.at, at, None, PAUSED).run_id
        asked = Claim(key, run_id, 0, TOKEN, ttl_ms, holder=holder.encode(), after=view.run_id)
        if not isinstance(store.claim(asked), Granted):
            time.sleep(LOOK_AGAIN)
    raise StoreUnavailable(f"{name} could not be paused: a beat is sending it all the time; try again")


def resume(store: Store, key: str) -> Pause | None:
    """End the pause of an entry; return the one that there was."""
    view = View(store.peek(key))
    found = pause_of(view)
    if found is not None:
        store.release(Release(key, view.run_id, 0, TOKEN, Outcome.REQUEUED, began=False))
    return found
