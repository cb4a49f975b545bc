"""Whether requests that overlapped in time can have happened one after another; after Wing, Gong and Lowe.

A search for an order in which each request takes effect at one moment between its call and its answer, and
in which a model gives every answer that was seen. What led nowhere is remembered by the set of requests
done and the model's state. A request that nobody heard an answer to may have taken effect, late, or not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import Enum
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tests.torture.history import NEVER

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tests.torture.history import Request

STEPS = 200_000
"""After so many steps the search gives up, and says so."""

WITHIN = 60.0
"""Seconds after its call for which a request without an answer is looked at; models may say less."""


class Model(Protocol):
    """What a store makes of requests; states are values."""

    @property
    def start(self) -> Hashable:
        """The state before the first request."""
        ...

    def next(self, state: Hashable, request: Request, before: float) -> Hashable | None:
        """Return the state after a request that takes effect not later than ``before``; None: impossible.

        A state that comes back unchanged says that nothing has happened.
        """
        ...


class Answer(Enum):
    """What the search found."""

    YES = "there is such an order"
    NO = "there is none"
    UNDECIDED = "the search was given up"


class Found(NamedTuple):
    """The answer, and how far the longest order came that was found."""

    answer: Answer
    longest: tuple[Request, ...]
    steps: int


class _Frame(NamedTuple):
    state: Hashable
    done: int
    candidates: list[int]


def search(requests: Sequence[Request], model: Model, steps: int = STEPS) -> Found:
    """Look for an order of the requests of one key."""
    work = _Work(requests)
    seen: set[tuple[int, Hashable]] = set()
    order: list[int] = []
    longest: tuple[int, ...] = ()
    stack = [_Frame(model.start, 0, work.candidates(0))]
    for step in range(steps):
        frame = stack[-1]
        if not work.known & ~frame.done:
            return Found(Answer.YES, work.named(order), step)
        if not frame.candidates:
            stack.pop()
            if not stack:
                return Found(Answer.NO, work.named(longest), step)
            order.pop()
            continue
        number = frame.candidates.pop()
        one = work.requests[number]
        state = model.next(frame.state, one, work.first_return(frame.done))
        if state is None or (state == frame.state and not one.known):
            continue
        if state == frame.state:
            frame.candidates.clear()  # what changes nothing may as well come first
        done = frame.done | 1 << number
        if (done, state) in seen:
            continue
        seen.add((done, state))
        order.append(number)
        if len(order) > len(longest):
            longest = tuple(order)
        stack.append(_Frame(state, done, work.candidates(done)))
    return Found(Answer.UNDECIDED, work.named(longest), steps)


class _Work:
    """The requests, those with an answer first and by its time: the first bit that is missing is the next."""

    def __init__(self, requests: Sequence[Request]) -> None:
        known = sorted((one for one in requests if one.known), key=attrgetter("returned"))
        unknown = sorted((one for one in requests if not one.known), key=attrgetter("called"))
        self.requests = [*known, *unknown]
        self.known = (1 << len(known)) - 1
        self._count = len(known)
        self._called = [one.called for one in unknown]
        # The earliest call of this one and all that were answered later.
        self._earliest = list(accumulate((one.called for one in reversed(known)), min))[::-1]

    def first_return(self, done: int) -> float:
        """Return when the first answer came of what is not done."""
        low = _lowest(done)
        return self.requests[low].returned if low < self._count else NEVER

    def candidates(self, done: int) -> list[int]:
        """Return what may come next, the best last: what has an answer before what has none, by its call."""
        first, number = self.first_return(done), _lowest(done)
        found = []
        while number < self._count and self._earliest[number] <= first:
            if not done >> number & 1 and self.requests[number].called <= first:
                found.append(number)
            number += 1
        found.sort(key=lambda number: self.requests[number].called, reverse=True)
        start, end = bisect_left(self._called, first - WITHIN), bisect_right(self._called, first)
        others = range(self._count + end - 1, self._count + start - 1, -1)
        return [*(number for number in others if not done >> number & 1), *found]

    def named(self, order: Sequence[int]) -> tuple[Request, ...]:
        """Return the requests of these numbers."""
        return tuple(self.requests[number] for number in order)


def _lowest(done: int) -> int:
    """Return the number of the lowest bit that is missing."""
    return (~done & (done + 1)).bit_length() - 1
