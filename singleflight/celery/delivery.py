"""One arrival of a run's message: what both the pool process and the worker's main process read off it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from singleflight.decisions import PATIENCE
from singleflight.policy import Singleton

HEADER = "singleflight"
"""The message header with all that a run carries of ours; standard JSON, nobody's arguments."""

TOKEN = "singleflight_token"  # noqa: S105 - a property's name
CONTENT_TYPE = "singleflight_content_type"
"""Message properties, set on arrival. Properties, unlike headers, are not published again by a retry."""

NESTING = 1 << 16
"""`Task.replace` keeps the task id and starts the retries anew: each replacement counts for this many."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a message says about its run: options of the call, and how long it has waited."""

    options: Singleton | bool | None = None
    """None: as declared; False: no lease; else the call's own options."""
    deferrals: int = 0
    since: float | None = None
    """Epoch seconds of the first deferral, by the clock of the worker that deferred."""

    @classmethod
    def read(cls, header: object) -> Carried:
        """Read a header that may come from anyone.

        Raises:
            ConfigurationError: if it names options that cannot be.
        """
        if not isinstance(header, Mapping):
            return cls()
        options, deferrals, since = header.get("options"), header.get("deferrals"), header.get("since")
        return cls(
            options if options is None or options is False else Singleton.from_header(options),
            deferrals if isinstance(deferrals, int) and deferrals > 0 else 0,
            float(since) if isinstance(since, int | float) else None,
        )

    def write(self) -> dict[str, object]:
        """Return the header."""
        header: dict[str, object] = {}
        if self.options is not None:
            header["options"] = self.options.to_header() if isinstance(self.options, Singleton) else False
        if self.deferrals:
            header.update(deferrals=self.deferrals, since=self.since)
        return header

    def deferred(self) -> Carried:
        """Return what the same run carries after one more deferral."""
        return replace(self, deferrals=self.deferrals + 1, since=self.since or time.time())

    def started(self) -> Carried:
        """Return what a retry of this run carries: it has not waited yet."""
        return replace(self, deferrals=0, since=None)

    @property
    def patient(self) -> bool:
        """True if the run has been deferred so often that it asks to go before fresh ones."""
        return self.deferrals > PATIENCE

    @property
    def waited(self) -> float:
        """Seconds since the first deferral."""
        return 0.0 if self.since is None else max(0.0, time.time() - self.since)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of one run's message at one worker."""

    run_id: str
    attempt: int
    token: str
    args: Any
    kwargs: Any
    carried: Carried = field(default_factory=Carried)
    redelivered: bool = False
    parent_id: str | None = None

    @classmethod
    def read(cls, request: Mapping[str, Any], token: str) -> Delivery:
        """Read a request's mapping: `Context.__dict__` in the pool, ``Request.request_dict`` outside it."""
        return cls(
            run_id=str(request["id"]),
            attempt=(request.get("replaced_task_nesting") or 0) * NESTING + (request.get("retries") or 0),
            token=token,
            args=request.get("args") or (),
            kwargs=request.get("kwargs") or {},
            carried=Carried.read(request.get(HEADER)),
            redelivered=bool((request.get("delivery_info") or {}).get("redelivered")),
            parent_id=request.get("parent_id"),
        )
