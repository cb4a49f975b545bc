"""Short ways to ask a store for things in its line, for the contract of `Lining`."""
# ruff: noqa: S101 - tests assert

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from singleflight.lease import Busy, Granted, Outcome
from singleflight.stores.base import Claim, Release
from singleflight.stores.lining import Arrival, Kind, Wait
from singleflight.testing.clock import FakeClock
from singleflight.testing.contract_base import LONG, token_of

if TYPE_CHECKING:
    from singleflight.stores.lining import Called, Lined, Lining
    from singleflight.testing.clock import RealClock


class At:
    """One key of a store, asked by a process that can publish for one home."""

    def __init__(self, store: Lining, key: str, home: str) -> None:
        self.store, self.key, self.home = store, key, home

    def claim(self, run: str, attempt: int = 0, called: Called | None = None, **more: Any) -> Lined:
        """Claim, by a message that was called if one is given."""
        return self.store.claim_in_line(self._claim(run, attempt, more), self._arrival(called, more))

    def granted(self, run: str, attempt: int = 0, called: Called | None = None, **more: Any) -> Lined:
        """Claim, and insist on a yes."""
        lined = self.claim(run, attempt, called, **more)
        assert isinstance(lined.answer, Granted), f"run {run} was refused: {lined.answer}"
        return lined

    def refused(self, run: str, attempt: int = 0, called: Called | None = None, **more: Any) -> Busy:
        """Claim, and insist on a no."""
        lined = self.claim(run, attempt, called, **more)
        assert isinstance(lined.answer, Busy), f"run {run} was granted"
        return lined.answer

    def park(
        self,
        run: str,
        attempt: int = 0,
        called: Called | None = None,
        *,
        kind: Kind = Kind.PARKED,
        message: bytes | None = None,
        life_ms: int = 0,
        **more: Any,
    ) -> Lined:
        """Claim, and wait if that is refused; the message is the run's name and attempt."""
        has_message = kind in (Kind.PARKED, Kind.JOINING)
        kept = (message or message_of(run, attempt)) if has_message else b""
        wait = Wait(kind, self.home if has_message else "", kept, life_ms)
        return self.store.park(self._claim(run, attempt, more), self._arrival(called, more), wait)

    def release(self, run: str, outcome: Outcome = Outcome.FINISHED, attempt: int = 0) -> list[Called]:
        """Release, and return what was called."""
        release = Release(self.key, run, attempt, token_of(run, attempt), outcome)
        return list(self.store.release_in_line(release, (self.home,)).called)

    def sent(self, called: Called) -> bool:
        """Say that a called message was published."""
        return self.store.sent(self.key, called.run_id, called.call_no)

    def sweep(self) -> list[Called]:
        """Sweep, and return what was called at this key."""
        return [one for one in self.store.sweep((self.home,)).called if one.key == self.key]

    @property
    def waiting(self) -> list[str]:
        """Who stands in line, in order."""
        return [one.run_id for one in self.store.line_of(self.key).shown]

    def _claim(self, run: str, attempt: int, more: dict[str, Any]) -> Claim:
        given: dict[str, Any] = {"token": token_of(run, attempt), "ttl_ms": LONG, **more}
        given.pop("order", None)
        return Claim(self.key, run, attempt, **given)

    def _arrival(self, called: Called | None, more: dict[str, Any]) -> Arrival:
        order = more.get("order", called.order if called else 0)
        return Arrival(called.call_no if called else 0, order, (self.home,))


def message_of(run: str, attempt: int = 0) -> bytes:
    """Return the message of a run's attempt; not all brokers' messages are text."""
    return f"\xff {run} {attempt}\0".encode("latin-1")


def turned(clock: FakeClock | RealClock) -> FakeClock:
    """Return the clock if it is one that a test can turn; else the test is left out."""
    if not isinstance(clock, FakeClock):
        pytest.skip("the lengths of calls need a clock that can be turned")
    return clock
