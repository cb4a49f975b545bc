"""What a key looks like to somebody who only looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from singleflight.lease import Holder, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `peek` has seen at one moment; true if a run held the key then.

    It may be old when you read it: to be sure that nobody else runs, ask for the lease.
    """

    key: str
    """The key, as the store knows it."""
    running: bool = False
    """Whether a run holds the lease, so that another one would be refused."""
    run_id: str = ""
    """The run that holds it, or else the last one that did; empty if none is known."""
    holder: Holder | None = None
    """Who that run's task, host and process are, for people."""
    since: float | None = None
    """When that run started: epoch seconds on the store's clock."""
    age: float | None = None
    """Seconds since then, by the store's clock."""
    expires_in: float = 0.0
    """Seconds until the lease ends if its holder has died; 0.0 if none runs."""
    opens_in: float = 0.0
    """Seconds until the window lets the next run start; 0.0 if it is open."""
    waiting: str = ""
    """The run that waits for the key; empty if none is known to."""
    outcome: Outcome | None = None
    """How the last run ended; None while one runs, or if none has ended."""
    fence: int = 0
    """The fence of that run."""

    def __bool__(self) -> bool:
        return self.running
