"""For tests of stores and of programs that use them: a clock to turn by hand, and the stores' contract."""

import pytest

# Without this, a failing contract says "assert False" instead of showing both sides.
pytest.register_assert_rewrite(
    "singleflight.testing.contract",
    "singleflight.testing.contract_claim",
    "singleflight.testing.contract_inspect",
    "singleflight.testing.contract_keep",
    "singleflight.testing.contract_slot",
)

from singleflight.testing.clock import FakeClock, RealClock  # noqa: E402 - after the registration
from singleflight.testing.contract import StoreContract  # noqa: E402

__all__ = ["FakeClock", "RealClock", "StoreContract"]
