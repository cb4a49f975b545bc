"""Whether requests that overlapped in time can have happened one after another; after Wing, Gong and Lowe.

A search for an order in which each request takes effect at one moment between its call and its answer, and
in which a model gives every answer that was seen. What led nowhere is remembered by the set of requests
done and the model's state. A request that nobody heard an answer to may have taken effect, late, or not.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tests.torture.history import NEVER

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tests.torture.history import Request

STEPS = 400_000
"""After so many steps the search gives up, and says so."""


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
    ordered = sorted(requests, key=lambda one: one.called)
    known = 0
    for number, one in enumerate(ordered):
        known |= one.known << number
    by_return = sorted((n for n, one in enumerate(ordered) if one.known), key=lambda n: ordered[n].returned)
    seen: set[tuple[int, Hashable]] = set()
    order: list[int] = []
    longest: tuple[int, ...] = ()
    stack = [_Frame(model.start, 0, _candidates(ordered, by_return, 0))]
    for step in range(steps):
        frame = stack[-1]
        if not known & ~frame.done:
            return Found(Answer.YES, tuple(ordered[n] for n in order), step)
        if not frame.candidates:
            stack.pop()
            if not stack:
                return Found(Answer.NO, tuple(ordered[n] for n in longest), step)
            order.pop()
            continue
        number = frame.candidates.pop()
        one = ordered[number]
        before = _first_return(ordered, by_return, frame.done)
        state = model.next(frame.state, one, before)
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
        stack.append(_Frame(state, done, _candidates(ordered, by_return, done)))
    return Found(Answer.UNDECIDED, tuple(ordered[n] for n in longest), steps)


def _first_return(ordered: Sequence[Request], by_return: Sequence[int], done: int) -> float:
    return next((ordered[n].returned for n in by_return if not done >> n & 1), NEVER)


def _candidates(ordered: Sequence[Request], by_return: Sequence[int], done: int) -> list[int]:
    """Return what may come next, the best last: what was answered before what was not, the earlier first."""
    first = _first_return(ordered, by_return, done)
    known, unknown = [], []
    for number, one in enumerate(ordered):
        if one.called > first:
            break
        if not done >> number & 1:
            (known if one.known else unknown).append(number)
    return [*reversed(unknown), *reversed(known)]
