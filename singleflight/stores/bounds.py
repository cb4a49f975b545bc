"""What no store takes: requests whose numbers or names are out of bounds, the same in every store; pure.

A store that kept one would fail at the release, or keep a key for good. Every implementation of `Store` calls
these before anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singleflight.errors import ConfigurationError
from singleflight.options import LONGEST
from singleflight.printable import printable
from singleflight.stores.base import INFINITE
from singleflight.stores.lining import MAX_MESSAGE, Kind

if TYPE_CHECKING:
    from singleflight.stores.base import Claim, Release
    from singleflight.stores.lining import Wait

MAX_ATTEMPT = INFINITE - 1

MAX_NAME = 1000
"""Characters of a run."""

MAX_HOLDER = 3000
"""Characters of a holder: two names and a number, with whatever JSON makes of their characters."""

MAX_TOKEN = 100

MAX_HOME = 250
"""Characters of a home; a database has room for them in an index."""

LONGEST_MS = round(1.1 * LONGEST * 1000)
"""Milliseconds of the longest duration: the longest that an option may have, and what a store adds to it."""


def check_claim(claim: Claim) -> None:
    """Refuse a claim that no store may take.

    Raises:
        ConfigurationError: naming the field and its value.
    """
    _name("run_id", claim.run_id, least=1)
    _name("token", claim.token, least=1, most=MAX_TOKEN)
    _name("holder", claim.holder, most=MAX_HOLDER)
    if claim.after is not None:
        _name("after", claim.after)
    _number("attempt", claim.attempt, 0, MAX_ATTEMPT)
    _number("ttl_ms", claim.ttl_ms, 1, LONGEST_MS)
    _number("window_ms", claim.window_ms, 0, LONGEST_MS)
    _number("wait_ms", claim.wait_ms, 0, LONGEST_MS)


def check_release(release: Release) -> None:
    """Refuse a release that no store may take.

    Raises:
        ConfigurationError: naming the field and its value.
    """
    _name("run_id", release.run_id, least=1)
    _name("token", release.token, most=MAX_TOKEN)
    _number("attempt", release.attempt, 0, MAX_ATTEMPT)
    _number("grace_ms", release.grace_ms, 0, LONGEST_MS)
    _number("again_ms", release.again_ms, 0, LONGEST_MS)


def check_place(run_id: str, ttl_ms: int = 1) -> None:
    """Refuse a waiting slot that no store may give.

    Raises:
        ConfigurationError: naming the field and its value.
    """
    _name("run_id", run_id, least=1)
    _number("ttl_ms", ttl_ms, 1, LONGEST_MS)


def check_wait(wait: Wait) -> None:
    """Refuse a way to wait that no line may take.

    Raises:
        ConfigurationError: naming the field and its value.
    """
    if wait.kind in (Kind.PARKED, Kind.JOINING) and not (wait.home and wait.message):
        raise ConfigurationError(f"{wait.kind} without a home and a message: nobody could publish it")
    _name("home", wait.home, most=MAX_HOME)
    if "\n" in wait.home:
        raise ConfigurationError(f"home={printable(wait.home, 60)} is no single line")
    _number("message (its length)", len(wait.message), 0, MAX_MESSAGE)
    _number("life_ms", wait.life_ms, 0 if wait.kind is Kind.PARKED else 1, LONGEST_MS)


def _name(field: str, value: object, *, least: int = 0, most: int = MAX_NAME) -> None:
    if not (isinstance(value, str) and least <= len(value) <= most):
        what = f"no text of {least} to {most} characters"
        raise ConfigurationError(f"{field}={printable(value, 60)} is {what}")


def _number(field: str, value: object, least: int, most: int) -> None:
    if not (isinstance(value, int) and least <= value <= most):
        raise ConfigurationError(f"{field}={printable(value, 60)} is no whole number from {least} to {most}")
