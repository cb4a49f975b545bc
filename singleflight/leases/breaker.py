"""A store that has failed rests: for some seconds nobody asks it, then one tries; an outage is told once."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, TypeVar

from singleflight.errors import StoreUnavailable
from singleflight.lease import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")

REST = 5.0
"""Seconds for which a store that has failed is not asked again by those who must not be slow."""


class Breaker:
    """What is known of one store's outage; safe to use from any thread.

    Args:
        rest: seconds for which a store that has failed is not asked.
        clock: seconds.
    """

    def __init__(self, rest: float = REST, clock: Callable[[], float] = monotonic) -> None:
        self._rest, self._clock = rest, clock
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._failure = ""
        self._rests_until = 0.0
        self._untold = False

    @property
    def rests(self) -> float:
        """Seconds for which the store is not to be asked."""
        return max(0.0, self._rests_until - self._clock()) if self._failure else 0.0

    @property
    def failure(self) -> str:
        """What the store's last failure was; empty if it has answered since."""
        return self._failure

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Put a question to the store unless it rests.

        Raises:
            StoreUnavailable: if the store does not answer, or rests.
        """
        self.pass_through()
        try:
            answer = question()
        except StoreUnavailable as error:
            self.failed(error)
            raise
        self.answered()
        return answer

    def pass_through(self) -> None:
        """Return if the store may be asked now; after its rest one may, while all others go on resting.

        Raises:
            StoreUnavailable: if it rests.
        """
        if not self._failure:
            return
        with self._own_lock():
            now = self._clock()
            if self._failure and now < self._rests_until:
                raise StoreUnavailable(f"{self._failure} (not asked again within {self._rest:g} s)")
            self._rests_until = now + self._rest

    def failed(self, error: object) -> None:
        """Note that the store has not answered."""
        with self._own_lock():
            self._untold = self._untold or not self._failure
            self._failure = str(error) or type(error).__name__
            self._rests_until = self._clock() + self._rest

    def is_news(self) -> bool:
        """Say, once for each outage, that it is still to be told: those who meet it are many."""
        news, self._untold = self._untold, False
        return news

    def answered(self) -> None:
        """Note that the store has answered."""
        if self._failure:
            self._failure, self._untold = "", False

    def _own_lock(self) -> threading.Lock:
        """Return the lock; in a forked child a new one, for whoever had the parent's is not there."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock
