"""One run at a time, on every worker and every replica: leases for Celery and Dramatiq tasks."""

from typing import TYPE_CHECKING

from singleflight.errors import (
    ConfigurationError,
    Conflict,
    LeaseLost,
    SingleflightError,
    Skipped,
    StoreUnavailable,
)
from singleflight.lease import Busy, Holder, Lease, Outcome, Reason
from singleflight.options import Singleton
from singleflight.status import Status

# isort: split
# Last: the function `lease` takes the name that importing the module `lease` has given to that module.
from singleflight.api import current_lease, lease, peek, try_lease

if TYPE_CHECKING:
    from singleflight.events import Event, Kind

__all__ = [
    "Busy",
    "ConfigurationError",
    "Conflict",
    "Event",
    "Holder",
    "Kind",
    "Lease",
    "LeaseLost",
    "Outcome",
    "Reason",
    "SingleflightError",
    "Singleton",
    "Skipped",
    "Status",
    "StoreUnavailable",
    "current_lease",
    "lease",
    "peek",
    "try_lease",
]


def __getattr__(name: str) -> object:
    # Events bring logging, which is a quarter of what this import would cost; few programs name them.
    if name in ("Event", "Kind"):
        from singleflight import events  # noqa: PLC0415

        return getattr(events, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
