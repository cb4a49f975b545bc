"""What a framework must be able to do for us: answer what admission asks of it, and do what that decides.

A message that ends without its body running may have a waiting slot. What is to be recorded of that comes
along as ``leaves``: once the end is stored, and not before, because a copy must be able to do that end again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from singleflight.leases.abort import Abort
from singleflight.tasks.decisions import LONGEST_DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.errors import StoreUnavailable
    from singleflight.lease import Busy, Lease
    from singleflight.stores.base import Release
    from singleflight.tasks.message import Carried


@dataclass(frozen=True, slots=True)
class Returned:
    """A result to take over: what a body has returned."""

    value: Any

    def take(self) -> Any:
        """Do as that body did."""
        return self.value


@dataclass(frozen=True, slots=True)
class Raised:
    """A result to take over: what a body has raised."""

    error: Exception

    def take(self) -> NoReturn:
        """Do as that body did."""
        raise self.error


@dataclass(frozen=True, slots=True)
class Nothing:
    """A run is over and has left nothing to take over: revoked, say, or dead with its process."""


Result = Returned | Raised


@dataclass(frozen=True, slots=True)
class Run:
    """The body runs: under ``lease``, or without one because the policy says so."""

    lease: Lease | None = None
    abort: Abort | None = None
    """Armed while the body runs, it interrupts it if the lease is lost."""
    carried: Carried | None = None
    """What the run's own retry is to carry, if that is not what its message carries."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body does not run: its run ends as if it had, with this."""

    result: Result
    lease: Lease | None = None
    """To be given back once that result is stored as the run's own."""
    leaves: Release | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """The same message is to arrive once more, in ``delay`` seconds, and to carry ``carried``."""

    delay: float
    carried: Carried
    leaves: Release | None = None
    """For a message that the broker does not take."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The message is kept in the line of its key, and will be published again when that is free."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The run ends as a duplicate."""

    why: str
    has_result: bool = True
    """False if the result under the run's id is another one's: two publishes of one id share it."""
    leaves: Release | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The run fails with a `Conflict`."""

    busy: Busy
    leaves: Release | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A late copy of a run that has ended: acknowledged, and nothing else is touched."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The run fails, because the store is away."""

    error: StoreUnavailable
    leaves: Release | None = None


Ending = Later | Parked | Skipped | Refused | Dropped | Unavailable
Fate = Run | Answer | Ending


class Adapter(Protocol):
    """One delivery as its framework sees it. What most frameworks do alike need not be written again."""

    @property
    def owner(self) -> Callable[[], object]:
        """A weak reference to what the framework keeps until the delivery is over, and no longer.

        Once that is gone, so is who would have given back the lease.
        """
        ...

    def result_of(self, run_id: str) -> Result | Nothing | None:
        """Return how another run of this task has ended; None if nobody can know that yet.

        Never raises: results whose server does not answer tell nothing.
        """
        ...

    @property
    def longest_deferral(self) -> float:
        """Seconds for which a message may stay away before its broker delivers it again."""
        return LONGEST_DEFERRAL

    @property
    def has_later(self) -> bool:
        """Whether a message can come back; a run that its caller waits for in its own process cannot."""
        return True

    @property
    def shares_results(self) -> bool:
        """Whether every run of this task can read the result of every other one."""
        return False

    def countable(self, delay: float) -> float:
        """Return a delay as the broker will count it."""
        return delay

    def message(self, carried: Carried) -> bytes | None:
        """Return the message as it came, but with ``carried`` in it; None if it can be kept nowhere.

        For `singleflight.leases.calling.Calling`, which hands it to the framework when it is to be published.
        """
        del carried
        return None

    def abort(self) -> Abort:
        """Return what interrupts a body, about to run in this thread, whose lease is lost."""
        return Abort()
