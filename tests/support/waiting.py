"""Bounded waiting: every wait in the tests has an end and says what it waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")

SOON = 15.0
"""Seconds for what happens at once, where a bound must tell it from the end of a long ttl (30 s or more).

A machine with ten programs to each core takes some seconds for what an idle one does in milliseconds.
"""


def until(
    condition: Callable[[], Value], timeout: float = 30.0, what: str = "", every: float = 0.02
) -> Value:
    """Ask `condition` until its answer is true, and return that answer.

    Args:
        condition: what to ask; its last answer is shown when the wait fails.
        timeout: seconds after which the wait fails. Generous: it only bounds a failure, see `SOON`.
        what: what is waited for, for the message.
        every: seconds between two questions.

    Raises:
        AssertionError: when `timeout` has passed.
    """
    deadline = time.monotonic() + timeout
    while True:
        # Looked at before asking, so that a slow question still gets one last chance.
        last_chance = time.monotonic() >= deadline
        answer = condition()
        if answer:
            return answer
        if last_chance:
            raise AssertionError(
                f"waited {timeout:g} s in vain for {what or condition!r}; last answer: {answer!r}"
            )
        time.sleep(every)
