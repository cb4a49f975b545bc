"""Requests to the store in a thread beside the main one, so that a signal ends the waiting at once."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from singleflight.cli.run.signals import ENDING, STOP, stop_self
from singleflight.lease import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.cli.run.signals import Signals

Answer = TypeVar("Answer")

AFTER_SIGNAL = 0.25
"""Seconds that a request which is under way, and what is to be given back, get after a signal to end."""


class Interrupted(Exception):
    """Raised when a signal ends the waiting; ``args[0]`` is its number."""


class Aside(Generic[Answer]):
    """Some work in a thread of its own, which may go on when nobody waits for it any more."""

    def __init__(self, signals: Signals, work: Callable[[], Answer]) -> None:
        """Start the work."""
        self._signals, self._work = signals, work
        self._answers: list[Answer] = []
        self._error: BaseException | None = None
        self._done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, seconds: float = float("inf")) -> Answer:
        """Return the answer, or raise its error.

        Raises:
            Interrupted: if a signal to end came first.
            TimeoutError: if the time is over.
        """
        if not sleep(self._signals, seconds, lambda: self._done):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def late(self) -> Answer | None:
        """Return the answer if it comes within `AFTER_SIGNAL`, for one who has been interrupted."""
        self._thread.join(AFTER_SIGNAL)
        return self._answers[0] if self._answers else None

    def _run(self) -> None:
        try:
            self._answers.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised to the one who waits
            self._error = error
        self._done = True
        self._signals.rouse()


def sleep(signals: Signals, seconds: float, done: Callable[[], bool] = lambda: False) -> bool:
    """Wait until something is done, and return True; False if the time is over before.

    Raises:
        Interrupted: if a signal to end came first.
    """
    end = monotonic() + seconds
    while not done():
        if monotonic() >= end:
            return False
        for number in signals.wait(end - monotonic()):
            if number == STOP:
                stop_self()
            elif number in ENDING:
                raise Interrupted(number)
    return True


def briefly(work: Callable[[], object]) -> None:
    """Do some work, and wait for it `AFTER_SIGNAL` at most; what it raises is of no use any more."""

    def run() -> None:
        with suppress(Exception):  # nobody is left to do anything about it
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(AFTER_SIGNAL)
