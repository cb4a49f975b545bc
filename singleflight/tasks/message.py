"""What a message carries of ours from one delivery of its run to the next; pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from singleflight.identity import is_mark
from singleflight.options import Singleton
from singleflight.tasks.decisions import PATIENCE


@dataclass(frozen=True, slots=True)
class Carried:
    """What a message says about its run: options of the call, and how long it has waited."""

    options: Singleton | bool | None = None
    """None: as declared; False: no lease; else the call's own options."""
    deferrals: int = 0
    since: float | None = None
    """Epoch seconds of the first deferral, by the clock of the worker that deferred."""
    kin: bool = False
    """Once deferred as no duplicate (a redelivery, a child of the holder), a run never is one."""
    slot: str | None = None
    """The key whose waiting slot the publisher has asked for in the run's name."""
    joins: str | None = None
    """The run that this one has met, and whose result it takes over."""
    mark: str | None = None
    """Which publish of its id the message is; None if that id is nobody else's."""

    @classmethod
    def read(cls, header: object) -> Carried:
        """Read a header that may come from anyone.

        Raises:
            ConfigurationError: if it names options that cannot be.
        """
        if not isinstance(header, Mapping):
            return cls()
        options, deferrals, since = header.get("options"), header.get("deferrals"), header.get("since")
        slot, joins = header.get("slot"), header.get("joins")
        mark = header.get("mark")
        return cls(
            options if options is None or options is False else Singleton.from_header(options),
            deferrals if isinstance(deferrals, int) and deferrals > 0 else 0,
            float(since) if isinstance(since, int | float) else None,
            header.get("kin") is True,
            slot if isinstance(slot, str) else None,
            joins if isinstance(joins, str) else None,
            mark if is_mark(mark) else None,
        )

    def write(self) -> dict[str, object]:
        """Return the header."""
        header: dict[str, object] = {}
        if self.options is not None:
            header["options"] = self.options.to_header() if isinstance(self.options, Singleton) else False
        if self.deferrals:
            header.update(deferrals=self.deferrals, since=self.since)
        if self.kin:
            header["kin"] = True
        if self.slot is not None:
            header["slot"] = self.slot
        if self.joins is not None:
            header["joins"] = self.joins
        if self.mark is not None:
            header["mark"] = self.mark
        return header

    def deferred(self, *, kin: bool, joins: str | None = None) -> Carried:
        """Return what the same run carries after one more deferral."""
        return replace(
            self,
            deferrals=self.deferrals + 1,
            since=self.since or time.time(),
            kin=self.kin or kin,
            joins=joins or self.joins,
        )

    def started(self) -> Carried:
        """Return what a retry of this run carries: it has not waited yet."""
        return replace(self, deferrals=0, since=None, kin=False, joins=None)

    @property
    def patient(self) -> bool:
        """True if the run has been deferred so often that it asks to go before fresh ones."""
        return self.deferrals > PATIENCE

    @property
    def waited(self) -> float:
        """Seconds since the first deferral."""
        return 0.0 if self.since is None else max(0.0, time.time() - self.since)
