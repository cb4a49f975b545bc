"""What happens to leases, one frozen event each, and the listener that writes them to the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from singleflight.errors import ConfigurationError
from singleflight.identity import message_id_of
from singleflight.log import MOST_SAID, logger, struck
from singleflight.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from singleflight.lease import Holder

    Listener = Callable[["Event"], None]

_DIGEST = r":\{([0-9a-f]{32})\}\Z"
"""How a key ends that `singleflight.keys` wrote, after its prefix and its readable name.

`re` compiles it, once, when the first key is shown, and not whenever this is imported.
"""


class Kind(StrEnum):
    """What happened."""

    GRANTED = "granted"
    TOOK_OVER = "took_over"
    """Granted, and the holder before had died without giving the lease back."""
    RELEASED = "released"
    SKIPPED = "skipped"
    DEFERRED = "deferred"
    REFUSED = "refused"
    """The publisher or the task got a `Conflict`."""
    DROPPED = "dropped"
    """A late copy of a run that has ended was acknowledged and nothing else."""
    GAVE_UP = "gave_up"
    """Skipped because ``give_up_after`` had passed."""
    OBSERVED = "observed"
    """Ran, although it would not have: ``enabled="observe"``."""
    UNGUARDED = "unguarded"
    """Ran without a lease: the store was away and ``on_store_error="run"``."""
    LOST = "lost"
    """The holder may not trust its lease any more while its body runs."""
    REGAINED = "regained"
    """The store confirmed a lease that had been mistrusted."""
    RESTORED = "restored"
    """The record had vanished (a flush, an empty replica) and was written back."""
    MISSED = "missed"
    """Planned times of a beat entry were left out, because they were too long ago."""
    STORE_ERROR = "store_error"
    """The store did not answer; never counted as a conflict."""


_LEVELS = {
    Kind.GRANTED: logging.DEBUG,
    Kind.RELEASED: logging.DEBUG,
    Kind.SKIPPED: logging.INFO,
    Kind.DEFERRED: logging.INFO,
    Kind.REFUSED: logging.INFO,
    Kind.DROPPED: logging.INFO,
    Kind.OBSERVED: logging.INFO,
}
"""Everything else is trouble: WARNING."""


_REFUSALS = {
    *(Kind.SKIPPED, Kind.DEFERRED, Kind.REFUSED, Kind.DROPPED, Kind.GAVE_UP, Kind.OBSERVED),
}

NOT_SENT = "not sent: "
"""Before the reason of a refusal that was met where the call was made."""

_WHY = {
    "finished": "this run has ended already",
    "same_run": "another delivery of this run is alive",
    "window": "too soon after the last start",
    "reserved": "a run that has waited longer goes first",
    "superseded": "somebody else went on",
    "queued": "another run waits already",
}
"""What a reason means where nobody's name says it; by the text of `singleflight.lease.Reason`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to one key."""

    kind: Kind
    task: str
    """Task or lease name."""
    key: str
    """The short key: readable, and without argument values."""
    run_id: str
    token: str = ""
    fence: int = 0
    reason: str = ""
    """Why: a `Reason`, an `Outcome`, or a sentence."""
    holder: Holder | None = None
    """Who holds the key, where somebody else does."""
    age: float | None = None
    """Seconds since the lease, or the run in the way, started."""
    delay: float | None = None
    """Seconds until a deferred run comes back."""

    def __str__(self) -> str:
        run = f"{printable(self.task)}: run {printable(self.run_id)} {self.kind.replace('_', ' ')}"
        parts = [run, f"key {printable(self.key)}"]
        if self.reason:
            parts.append(printable(self.reason, MOST_SAID))
        if self.kind in _REFUSALS and (why := _WHY.get(self.reason.removeprefix(NOT_SENT))):
            parts.append(why)
        if self.holder is not None:
            parts.append(f"held by {self.holder}")
        if self.age is not None:
            held = self.kind not in _REFUSALS or self.holder is not None
            parts.append(f"for {self.age:.1f} s" if held else f"which was {self.age:.1f} s ago")
        if self.delay is not None:
            parts.append(f"again in {self.delay:.1f} s")
        return ", ".join(parts)


class Subject(Protocol):
    """What an event can be about: a request for a lease, or the lease."""

    @property
    def task(self) -> str:
        """Task or lease name."""
        ...

    @property
    def key(self) -> str:
        """The whole key."""
        ...

    @property
    def run_id(self) -> str:
        """The run that asks or holds."""
        ...

    @property
    def token(self) -> str:
        """The delivery that asks or holds."""
        ...


def short_key(key: str) -> str:
    """Return a key as logs show it, ``task.name:3f2a9c1b``; a text that is no key comes back as it is."""
    digest = re.search(_DIGEST, key[-35:])
    name = key[:-35].rpartition(":")[2] if digest else ""
    return f"{name}:{digest[1][:8]}" if digest and name else key


def about(
    subject: Subject,
    kind: Kind,
    reason: str = "",
    *,
    fence: int = 0,
    holder: Holder | None = None,
    age: float | None = None,
    delay: float | None = None,
) -> Event:
    """Return the event that something happened to a request or a lease."""
    return Event(
        kind=kind,
        task=subject.task,
        key=short_key(subject.key),
        run_id=message_id_of(subject.run_id),
        token=subject.token,
        fence=fence,
        reason=reason,
        holder=holder,
        age=age,
        delay=delay,
    )


def levels_of(value: object) -> dict[Kind, int]:
    """Read the setting ``log_levels``: the level of each kind of event that is not to have its usual one.

    Args:
        value: None, or a mapping from kinds (``"skipped"``) to levels (``"WARNING"``, ``logging.WARNING``).

    Raises:
        ConfigurationError: for anything else, naming what is wrong.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"log_levels={value!r} must be a dict, such as {{'skipped': 'WARNING'}}")
    return {_kind(kind): _level(level) for kind, level in value.items()}


def _kind(value: object) -> Kind:
    if isinstance(value, str) and value in set(Kind):
        return Kind(value)
    import difflib  # noqa: PLC0415 - slow to load, and only a mistake needs it

    near = difflib.get_close_matches(str(value), list(Kind), n=1)
    hint = f"did you mean {str(near[0])!r}? " if near else ""
    raise ConfigurationError(f"log_levels: {value!r} is no event; {hint}Choose among {', '.join(Kind)}")


def _level(value: object) -> int:
    known = logging.getLevelNamesMapping()
    if isinstance(value, str) and value.upper() in known:
        return known[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ConfigurationError(
        f"log_levels: {value!r} is no level; write a name such as 'WARNING', or a number"
    )


class Notify:
    """Writes events to the logger ``singleflight``, and tells every listener.

    Ordinary skips are INFO and trouble is WARNING, unless ``levels`` says otherwise. A record carries its
    event as ``record.singleflight``, for structured logging. A listener's exception is logged and goes no
    further.
    """

    def __init__(self, listeners: Iterable[Listener] = (), levels: Mapping[Kind, int] | None = None) -> None:
        """Take listeners to call after the log; one with ``singleflight_kinds`` wants to hear those.

        Args:
            listeners: functions that get each `Event`.
            levels: the levels of kinds that are not to have their usual one; see `levels_of`.
        """
        self._listeners = (self._log, *listeners)
        self._levels = {**_LEVELS, **(levels or {})}
        self._heeded = {
            kind for one in self._listeners[1:] for kind in getattr(one, "singleflight_kinds", Kind)
        }

    def heeds(self, kind: Kind) -> bool:
        """Return whether anybody hears events of this kind; others need not be made."""
        return kind in self._heeded or logger.isEnabledFor(self._levels.get(kind, logging.WARNING))

    def _log(self, event: Event) -> None:
        level = self._levels.get(event.kind, logging.WARNING)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra={"singleflight": event})

    def __call__(self, event: Event) -> None:
        """Pass one event on."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:  # a listener is the user's code, and must not break the user's task
                if struck(error):
                    raise
                logger.exception("singleflight listener %r failed", listener)
