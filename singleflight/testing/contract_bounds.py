"""The contract's rules about what no store takes: numbers and names out of bounds."""
# ruff: noqa: S101, S106 - tests assert, and a lease's token is no password

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from singleflight.errors import ConfigurationError
from singleflight.lease import Granted, Outcome
from singleflight.stores.base import INFINITE, Claim, Release
from singleflight.stores.bounds import MAX_HOLDER, MAX_NAME, MAX_TOKEN
from singleflight.testing.contract_base import LONG, Rules, claim, granted, look, release

if TYPE_CHECKING:
    from singleflight.stores.base import Store

HUGE = 10**400
LENGTHY = "x" * (MAX_NAME + 1)
ATTEMPTS = (-1, INFINITE, HUGE, 0.5, "1", None)
DURATIONS = (-1, HUGE, float("nan"), float("inf"), "1")
NAMES = (LENGTHY, 7, None, ["a"])

CLAIMS: dict[str, tuple[object, ...]] = {
    "attempt": ATTEMPTS,
    "ttl_ms": (0, *DURATIONS),
    "window_ms": DURATIONS,
    "wait_ms": DURATIONS,
    "run_id": ("", *NAMES),
    "token": ("", *NAMES),
    "holder": ("x" * (MAX_HOLDER + 1), *NAMES[1:]),
    "after": (LENGTHY, 7),
}
RELEASES: dict[str, tuple[object, ...]] = {
    "attempt": ATTEMPTS,
    "grace_ms": DURATIONS,
    "again_ms": DURATIONS,
    "run_id": ("", *NAMES),
    "token": NAMES,
}


def _with(fair: Any, field: str, value: object) -> Any:
    return fair._replace(**{field: value})


class BoundRules(Rules):
    """What is refused, whoever asks for it."""

    def test_a_claim_out_of_bounds_is_refused_and_changes_nothing(self, store: Store, key: str) -> None:
        """One that was granted could not be released, or would keep its key for good."""
        fair = Claim(key, "a", 0, "t", LONG)

        for field, values in CLAIMS.items():
            for value in values:
                with pytest.raises(ConfigurationError, match=field):
                    store.claim(_with(fair, field, value))
        assert store.peek(key) is None

    def test_a_release_out_of_bounds_is_refused_and_changes_nothing(self, store: Store, key: str) -> None:
        """The lease goes on as it was."""
        granted(store, key, "a", token="t")
        before, fair = look(store, key).record, Release(key, "a", 0, "t", Outcome.FINISHED)

        for field, values in RELEASES.items():
            for value in values:
                with pytest.raises(ConfigurationError, match=field):
                    store.release(_with(fair, field, value))
        assert look(store, key).record == before

    def test_a_slot_out_of_bounds_is_refused_and_changes_nothing(self, store: Store, key: str) -> None:
        """Nobody waits under a name that nobody can have, nor for good."""
        names: list[tuple[Any, Any]] = [(name, LONG) for name in ("", *NAMES)]
        durations: list[tuple[Any, Any]] = [("a", value) for value in (0, *DURATIONS)]
        for run_id, ttl_ms in (*names, *durations):
            with pytest.raises(ConfigurationError):
                store.queue(key, run_id, ttl_ms=ttl_ms, running_too=False)
        assert store.peek(key) is None

    def test_what_is_just_within_bounds_is_granted_and_released(self, store: Store, key: str) -> None:
        """The last attempt, the longest names: whoever gets its lease can give it back."""
        run, attempt, token = LENGTHY[1:], INFINITE - 1, LENGTHY[:MAX_TOKEN]

        assert isinstance(claim(store, key, run, attempt, token=token), Granted)
        assert release(store, key, run, attempt=attempt, token=token)
        assert not look(store, key).record.held
