"""Exceptions raised into the middle of things, as a time limit raises them, at each place in turn."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING

from singleflight.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Self


_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


class Struck(BaseException):
    """What a test raises into the middle of things."""


class StruckSoftly(Exception):
    """A soft time limit is an ordinary exception."""


class Strike:
    """Raises at the n-th place where Python looks for signals: calls, returns, and returns from C.

    Args:
        at: which place.
        error: what to raise.
    """

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.left = at
        self.error = error
        self.struck = False

    def __enter__(self) -> Self:
        # Or a strike might keep the lock of `logging` itself, for all tests to come.
        for level in _LEVELS:
            logger.isEnabledFor(level)
        sys.setprofile(self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        sys.setprofile(None)
        return self.struck  # `threading` may make another error of it; what counts is the state afterwards

    def _look(self, frame: FrameType, event: str, _argument: object) -> None:
        ours = "test_" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
        if ours or event not in ("call", "return", "c_return"):
            return
        self.left -= 1
        if self.left == 0:
            self.struck = True
            sys.setprofile(None)
            raise self.error


def strikes(error: type[BaseException], most: int = 3000) -> Iterator[Strike]:
    """Strike at each place in turn, until the code under test comes through unharmed."""
    for at in range(1, most):
        strike = Strike(at, error)
        yield strike
        if not strike.struck:
            assert at > 20, "this test struck next to nothing"
            return
    raise AssertionError("there was no end")


def in_another_thread(act: Callable[[], object]) -> None:
    """Act where a lock that the struck thread kept would be noticed."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "a lock was left behind"
