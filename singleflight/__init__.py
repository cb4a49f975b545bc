"""One run at a time, on every worker and every replica: leases for Celery and Dramatiq tasks."""

from singleflight.errors import (
    ConfigurationError,
    Conflict,
    LeaseLost,
    SingleflightError,
    Skipped,
    StoreUnavailable,
)
from singleflight.events import Event, Kind
from singleflight.lease import Busy, Holder, Lease, Outcome, Reason
from singleflight.options import Singleton
from singleflight.plain import current_lease, lease, try_lease

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
    "StoreUnavailable",
    "current_lease",
    "lease",
    "try_lease",
]
