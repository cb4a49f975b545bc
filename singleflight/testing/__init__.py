"""For tests: of tasks, a recorder of what happens to leases; of stores, their contract; for both, a clock."""

import pytest

# Without this, a failing contract says "assert False" instead of showing both sides.
pytest.register_assert_rewrite(
    "singleflight.testing.contract",
    "singleflight.testing.contract_claim",
    "singleflight.testing.contract_inspect",
    "singleflight.testing.contract_keep",
    "singleflight.testing.contract_line",
    "singleflight.testing.contract_line_base",
    "singleflight.testing.contract_line_time",
    "singleflight.testing.contract_runs",
    "singleflight.testing.contract_slot",
)

from singleflight.testing.clock import FakeClock, RealClock  # noqa: E402 - after the registration
from singleflight.testing.contract import StoreContract  # noqa: E402
from singleflight.testing.contract_line_time import LineTimeRules as LineContract  # noqa: E402
from singleflight.testing.recorder import FlightRecorder  # noqa: E402

__all__ = ["FakeClock", "FlightRecorder", "LineContract", "RealClock", "StoreContract"]
