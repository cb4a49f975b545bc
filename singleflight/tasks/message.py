"""What a message carries of ours from one delivery of its run to the next; pure, but for a line in the log.

Whoever may publish can write anything here, and ordinary forwarding of headers copies it to other messages.
So it names the run and the task that it is for and counts nowhere else; and every field has a type and
bounds: what does not fit counts as not there, and the log says so once. Reading never raises.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from singleflight.errors import ConfigurationError
from singleflight.identity import LENGTH, is_mark, is_marked, message_id_of
from singleflight.keys import MAX_KEY
from singleflight.log import logger
from singleflight.options import Singleton
from singleflight.printable import printable
from singleflight.tasks.decisions import GOES_FIRST_AFTER

MAX_RUN = 255
"""A run whose message has a longer id, or one that is not printable, is known by a digest of that."""

MOST_DEFERRALS = 1_000_000
LATEST = 1e11
"""Epoch seconds, in the year 5138."""
HIGHEST = 1 << 53
"""Above every number of a line."""

FIELDS = ("for", "options", "deferrals", "since", "must_run", "slot", "joins", "mark", "call_no", "order")

MOST_TOLD = 200
_told: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Carried:
    """What a message says about its run: options of the call, and how long it has waited."""

    options: Singleton | Literal[False] | None = None
    """None: as declared; False: no lease; else the call's own options."""
    deferrals: int = 0
    since: float | None = None
    """Epoch seconds of the first deferral, by the clock of the worker that deferred."""
    must_run: bool = False
    """Once deferred as no duplicate (a redelivery, a child of the holder), a run never is one."""
    slot: str | None = None
    """The key whose waiting slot the publisher has asked for in the run's name."""
    joins: str | None = None
    """The run that this one has met, and whose result it takes over."""
    mark: str | None = None
    """Which publish of its id the message is; None if that id is nobody else's."""
    call_no: int = 0
    """The call that the message comes by, if it comes from a line; see `singleflight.stores.lining`."""
    order: int = 0
    """The order of its run in the line; 0 if that has never waited in one."""

    @classmethod
    def read(cls, header: object, message_id: str, task: str) -> Carried:
        """Read a header that may come from anyone, as one of this message of this task.

        Of a header that is for another one, or for none, nothing is left.
        """
        if header is None:
            return cls()
        if not isinstance(header, Mapping):
            tell_once(task, "its singleflight header is no mapping")
            return cls()
        whose = header.get("for")
        if not isinstance(whose, list | tuple) or list(whose) != [message_id, task]:
            return cls()  # forwarded from another message, which is nothing to complain of
        fields = _Fields(header, task)
        carried = cls(
            fields.read("options", partial(_options, task=task)),
            fields.read("deferrals", _deferrals) or 0,
            fields.read("since", _moment),
            fields.read("must_run", _true) or False,
            fields.read("slot", partial(_text, longest=MAX_KEY)),
            fields.read("joins", partial(_text, longest=MAX_RUN + 1 + LENGTH)),
            fields.read("mark", _mark),
            fields.read("call_no", _number) or 0,
            fields.read("order", _number) or 0,
        )
        fields.tell()
        return carried

    def write(self, run_id: str, task: str) -> dict[str, object]:
        """Return the header for the message of a run of this task; empty if there is nothing to carry.

        Raises:
            ConfigurationError: if its options cannot travel.
        """
        fields = self.fields()
        return {"for": [message_id_of(run_id), task], **fields} if fields else {}

    def fields(self) -> dict[str, object]:
        """Return what there is to carry, for nobody in particular.

        Raises:
            ConfigurationError: if its options cannot travel.
        """
        header: dict[str, object] = {}
        if self.options is not None:
            header["options"] = self.options.to_header() if isinstance(self.options, Singleton) else False
        if self.deferrals:
            header.update(deferrals=self.deferrals, since=self.since)
        if self.must_run:
            header["must_run"] = True
        if self.slot is not None:
            header["slot"] = self.slot
        if self.joins is not None:
            header["joins"] = self.joins
        if self.mark is not None:
            header["mark"] = self.mark
        if self.call_no:
            header["call_no"] = self.call_no
        if self.order:
            header["order"] = self.order
        return header

    def deferred(self, *, must_run: bool, joins: str | None = None) -> Carried:
        """Return what the same run carries after one more deferral."""
        return replace(
            self,
            deferrals=self.deferrals + 1,
            since=self.since or time.time(),
            must_run=self.must_run or must_run,
            joins=joins or self.joins,
            call_no=0,
        )

    def started(self) -> Carried:
        """Return what a retry of this run carries: it has not waited yet, and arrives behind those who do."""
        return replace(self, deferrals=0, since=None, must_run=False, joins=None, call_no=0, order=0)

    @property
    def goes_first(self) -> bool:
        """True if the run has been deferred so often that it asks to go before fresh ones."""
        return self.deferrals > GOES_FIRST_AFTER

    @property
    def waited(self) -> float:
        """Seconds since the first deferral."""
        return 0.0 if self.since is None else max(0.0, time.time() - self.since)


def id_of(value: object) -> str:
    """Return the id of a message: its own, or a digest of one that no store should keep.

    Nor one that looks marked: a run would be taken for one of another id, and its result for that one's.
    """
    fits = isinstance(value, str) and 0 < len(value) <= MAX_RUN and value.isprintable()
    if fits and isinstance(value, str) and not is_marked(value):
        return value
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001 - Python writes no number of more than 4300 digits
        text = type(value).__name__
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def counted(value: object) -> int:
    """Return a number that counts something; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def mapping(value: object) -> Mapping[Any, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> tuple[Any, ...]:
    """Return what a call unpacks of its arguments; nothing of what cannot be unpacked."""
    return tuple(value) if isinstance(value, Iterable) else ()


def tell_once(task: str, what: str) -> None:
    """Say in the log what is wrong with a message of a task, if it has not been said yet."""
    if (task, what) not in _told and len(_told) < MOST_TOLD:  # who writes nonsense must not fill the log
        _told.add((task, what))
        logger.warning("singleflight: a message of %s: %s", task, what)


class _Fields:
    """The fields of one header, and which of them do not fit."""

    def __init__(self, header: Mapping[Any, Any], task: str) -> None:
        self._header, self._task = header, task
        self._wrong = [str(name) for name in header if name not in FIELDS]

    def read(self, name: str, fitting: Any) -> Any:
        """Return a field as ``fitting`` makes of it; None if it is not there or does not fit."""
        value = self._header.get(name)
        if value is None:
            return None
        found = fitting(value)
        if found is None:
            self._wrong.append(name)
        return found

    def tell(self) -> None:
        """Say what was left out."""
        for name in self._wrong:
            tell_once(self._task, f"{printable(name, 40)!r} of its singleflight header does not fit")


def _options(value: object, task: str) -> Singleton | Literal[False] | None:
    """Return the options of a call, those left out that do not fit or may not come with a message."""
    if value is False:
        return False
    if not isinstance(value, Mapping):
        return None
    fitting = Singleton()
    for name in value:
        try:
            fitting = Singleton.from_header({**fitting.to_header(), name: value[name]})
        except (ConfigurationError, TypeError) as error:
            tell_once(task, f"an option is left out: {error}")
    return fitting


def _deferrals(value: object) -> int | None:
    return min(counted(value), MOST_DEFERRALS) or None


def _number(value: object) -> int | None:
    number = counted(value)
    return number if 0 < number < HIGHEST else None


def _true(value: object) -> bool | None:
    return True if value is True else None


def _mark(value: object) -> str | None:
    return value if isinstance(value, str) and is_mark(value) else None


def _moment(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Written so that NaN fails too; compared before float(), which a huge int would overflow.
    return float(value) if 0 < value < LATEST else None


def _text(value: object, longest: int) -> str | None:
    fits = isinstance(value, str) and 0 < len(value) <= longest and value.isprintable()
    return value if fits and isinstance(value, str) else None
