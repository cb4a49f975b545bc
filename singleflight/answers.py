"""What a store answers: granted to whom, or why not; and how a delivery ended. Plain values, pure."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from typing import NamedTuple

from singleflight.identity import message_id_of
from singleflight.printable import printable


class Reason(StrEnum):
    """Why a claim or a place in the waiting slot was refused."""

    FINISHED = "finished"
    """This run has ended (or a later attempt of it has started): the message is a late copy."""
    SAME_RUN = "same_run"
    """Another delivery of this very run is alive."""
    RUNNING = "running"
    """Another run holds the lease."""
    WINDOW = "window"
    """The last start is less than ``window`` ago."""
    RESERVED = "reserved"
    """A run that has waited too long goes first."""
    SUPERSEDED = "superseded"
    """Somebody else went on from the tick that this claim builds on."""
    QUEUED = "queued"
    """Another run already waits."""
    ENDING = "ending"
    """This run was dropped while it waited: end it instead of starting it."""


class Outcome(StrEnum):
    """How a delivery ended, as told to the store on release."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRYING = "retrying"
    """This attempt ended and its successor is published."""
    REQUEUED = "requeued"
    """The same message will come back."""

    @property
    def final(self) -> bool:
        """True if no delivery of the run may start any more."""
        return self in (Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELLED)


LONGEST_NAME = 200
"""Characters of a task or a host that a store keeps of its holder: names may be of any length."""


@lru_cache(maxsize=256)
def _encoded(holder: Holder) -> str:
    """Return the text of a holder; a process claims for the same few tasks again and again."""
    shown = holder.task[:LONGEST_NAME], holder.host[:LONGEST_NAME], holder.pid
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


@cache
def _hostname() -> str:
    from socket import gethostname  # noqa: PLC0415 - half as slow to load as all of this package

    return gethostname()


class Holder(NamedTuple):
    """Who holds a lease, for people; nothing is decided by it."""

    task: str
    host: str
    pid: int

    @classmethod
    def here(cls, task: str) -> Holder:
        """Return this process as the holder of a task's lease."""
        return cls(task, _hostname(), os.getpid())

    def encode(self) -> str:
        """Return the text that the store keeps."""
        return _encoded(self)

    @classmethod
    def decode(cls, text: str) -> Holder | None:
        """Read what `encode` wrote; None if there is no holder or the text is foreign."""
        try:
            task, host, pid = json.loads(text)
            return cls(str(task), str(host), int(pid))
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return printable(f"{self.task} on {self.host}, pid {self.pid}")


class Granted(NamedTuple):
    """The store's yes to a claim.

    ``fence`` grows with every grant of the key. ``started_ms`` and ``opens_ms`` (store's clock, epoch
    milliseconds) are the start of the run and the end of its window; a renewal carries them so that
    a record lost in a flush can be written back.
    """

    fence: int
    took_over: bool
    started_ms: int
    opens_ms: int


@dataclass(frozen=True, slots=True)
class Busy:
    """The store's no to a claim: a value, not an error.

    ``run_id`` is the run that is in the way (or the last one), ``ended`` says that this run is known to
    have ended; ``resumed`` says that the *claiming* run has started before and has not ended, so it is
    never a duplicate; ``waiting`` is the run in the waiting slot, perhaps the claiming run itself.
    """

    reason: Reason
    run_id: str
    retry_after: float
    """Seconds until the obstacle lapses if nothing else happens."""
    holder: Holder | None = None
    since: float | None = None
    """When the run in the way started: epoch seconds on the store's clock."""
    resumed: bool = False
    waiting: str = ""
    ended: bool = False

    @property
    def holds(self) -> bool:
        """True if somebody has the key now; else ``holder`` is that of the run before, if any."""
        return self.reason in (Reason.RUNNING, Reason.SAME_RUN)

    @property
    def ahead(self) -> str:
        """The run that has the key, or goes next: one that has reserved it is met like one that runs."""
        return self.waiting if self.reason is Reason.RESERVED else self.run_id

    def for_callers(self) -> Busy:
        """Return the same with the ids of messages in place of the runs that the store knows them by."""
        return replace(self, run_id=message_id_of(self.run_id), waiting=message_id_of(self.waiting))

    def encode(self) -> str:
        """Return a text that `decode` reads, for an error's arguments; runs go by their messages' ids."""
        told = self.for_callers()
        fields = {name: getattr(told, name) for name in self.__slots__}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Busy | None:
        """Read what `encode` wrote; None if the text is foreign."""
        try:
            fields = json.loads(text)
            return cls(
                Reason(fields["reason"]),
                str(fields["run_id"]),
                float(fields["retry_after"]),
                None if fields["holder"] is None else Holder.decode(json.dumps(fields["holder"])),
                None if fields["since"] is None else float(fields["since"]),
                fields["resumed"] is True,
                str(fields["waiting"]),
                fields["ended"] is True,
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None

    def __str__(self) -> str:
        who = f" by {self.holder}" if self.holder and self.holds else ""
        until = f"{self.retry_after:.1f} s"
        free = {
            Reason.RUNNING: f", free in {until} if it has died",
            Reason.SAME_RUN: f", free in {until} if it has died",
            Reason.WINDOW: f", next start in {until}",
            Reason.RESERVED: f", free in at most {until}",
            Reason.QUEUED: f", free in at most {until}",
        }
        run = printable(message_id_of(self.ahead)) or "(none)"
        return f"{self.reason}: run {run}{who}{free.get(self.reason, '')}"
