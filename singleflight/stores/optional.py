"""What a store may offer besides `Store`; whoever needs it asks for it with `isinstance`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator


@runtime_checkable
class Waking(Protocol):
    """What a store may offer besides: to tell whoever waits that its time has come."""

    def listen(self, key: str, run_id: str, *, seconds: float) -> None:
        """Return when the lease is free for this run, whose last claim was refused `Waits.LISTENING`.

        Each release tells one run, in the order in which they came, and the waiting slot is its for a
        moment. May return early, and does return after ``seconds``: claim again either way.

        Raises:
            StoreUnavailable: if the store does not answer.
        """
        ...


@runtime_checkable
class Listing(Protocol):
    """What operators need of a store besides: a list of its keys."""

    def scan(self, prefix: str) -> Iterator[str]:
        """Go through all keys that begin with ``prefix`` and a colon, in any order, each once.

        Must neither block the server nor change anything; keys that come or go meanwhile may be missed.
        """
        ...


@runtime_checkable
class SetUp(Protocol):
    """What a store may tell besides: how it comes to be, and with which rights it does."""

    def set_up(self) -> bool:
        """Make what is missing, with the rights of somebody who may; False if nothing ever needs to be made.

        Safe to repeat, and several times at once.

        Raises:
            ConfigurationError: if this user may not.
            StoreUnavailable: if the store does not answer.
        """
        ...

    def instructions(self, prefix: str) -> list[str]:
        """Return, line by line, what to run instead of `set_up`, and the least rights of those who use it.

        A comment says before each part whom it is for.
        """
        ...


WORKERS = "workers, beats, publishers, and singleflight run"
OPERATORS = "operators: ls, show, evict, watch, doctor"
LOOKERS = "operators who only look: ls, show, watch; evict and doctor need what workers need"
"""Whom `SetUp.instructions` are for."""
