"""DynamoDB's time, from the ``Date`` headers of its responses: whole seconds, and no other clock is asked.

A response dated D that was requested at *sent* and came at *received* (this machine's monotonic clock) says:
the server's clock was in [D, D + 1) at some moment between the two. So the server is ahead of the monotonic
clock by at least D - received and by less than D + 1 - sent. Later responses narrow that interval, time
widens it again, because no two clocks run at quite the same rate.

What this clock shows is the *earliest* that it can be there: a lease is never thought to have lapsed too
early. Whoever writes when something ends adds `BOUND`, the most by which this clock may be behind.
"""

from __future__ import annotations

import math
import threading
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from singleflight.errors import ConfigurationError
from singleflight.lease import monotonic
from singleflight.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BOUND = 1.5
"""Seconds by which the clock may be behind the server: the header's whole one, and half for the network."""

DRIFT = 0.001
"""Seconds per second by which two clocks may run apart; quartz is ten times better."""

OFF = 5.0
"""Seconds by which this machine's own clock may be off before a warning says so."""


class ServerClock:
    """The server's clock, as well as it is known; safe to use from any thread.

    Args:
        steady: seconds that go on at an even pace.
        wall: this machine's own clock, epoch seconds; only compared, to warn.
    """

    bound_ms = round(BOUND * 1000)
    """Milliseconds to add to what is written as an end."""

    def __init__(
        self, steady: Callable[[], float] = monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._steady, self._wall = steady, wall
        self._lock = threading.Lock()
        # The server is ahead of the steady clock by at least `low` and at most `high` seconds, since `at`.
        self._low, self._high, self._at = -math.inf, math.inf, 0.0
        self._warned = False

    def __reduce__(self) -> tuple[type[ServerClock], tuple[()]]:
        """Learn anew in another process, which has a steady clock of its own."""
        return ServerClock, ()

    def steady(self) -> float:
        """Return the moment on the steady clock, for `learn`."""
        return self._steady()

    def learn(self, headers: Mapping[str, str], sent: float) -> None:
        """Take in a response to a request that went out at ``sent``."""
        received = self._steady()
        try:
            date = parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, ValueError) as error:
            raise ConfigurationError(
                "the DynamoDB endpoint sends no usable Date header, and there is no other clock to go by"
            ) from error
        low, high = date - received, date + 1 - sent
        with self._lock:
            drift = (received - self._at) * DRIFT
            known = max(low, self._low - drift), min(high, self._high + drift)
            # An empty interval: the server's clock was set, or this machine slept. Begin anew.
            self._low, self._high = known if known[0] < known[1] else (low, high)
            self._at = received
        self._compare(received)

    @property
    def ready(self) -> bool:
        """Whether it is known well enough to be gone by."""
        return self._high - self._low <= BOUND

    def now_us(self) -> int:
        """Return the epoch microseconds that the server's clock shows at least."""
        now = self._steady()
        with self._lock:
            return round((now + self._low - (now - self._at) * DRIFT) * 1_000_000)

    def _compare(self, received: float) -> None:
        ahead = self._wall() - received - (self._low + self._high) / 2
        if abs(ahead) > OFF and not self._warned:
            self._warned = True
            logger.warning(
                "singleflight: this machine's clock is %.0f s %s of DynamoDB's. Leases go by DynamoDB's, but "
                "AWS refuses requests that are signed more than five minutes off: let NTP set it",
                abs(ahead),
                "ahead" if ahead > 0 else "behind",
            )
