"""The `Lining` protocol: what a store may offer besides, a place to wait; and what it must promise then.

*Waiting* runs stand in the **line** of a key. *Ready* is who can be called: due, not called, not passed over,
not ending, not joining, its run not live, with a message in the line or a process that waits. *Called* is who
was given the key to take now; that is kept for it for a few seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.answers import Busy, Granted
    from singleflight.stores.base import Claim, Release

MAX_MESSAGE = 256 * 1024
"""Bytes of the longest message that a line keeps; longer ones wait by the broker's countdown."""

MAX_CALLED = 16
"""How many messages one answer carries at most."""

MAX_CALLED_BYTES = 1024 * 1024
"""How many bytes of messages one answer carries at most, beyond its first message."""


class Kind(StrEnum):
    """How somebody waits."""

    PARKED = "parked"
    """Its message is kept in the line, so that neither broker nor worker holds it."""
    JOINING = "joining"
    """Parked too, until the run that it joins has ended; it takes no room and is nobody's way."""
    LISTENING = "listening"
    """In a process, which looks again by itself at least once in each `Wait.life_ms`."""
    COUNTING = "counting down"
    """With the broker, which brings its message back within `Wait.life_ms`."""


class Arrival(NamedTuple):
    """What a claim says of its place in the line.

    ``call_no`` and ``order`` are what its message carries: of the call that it comes by, and of its first
    arrival at any gate; 0 if it carries none. ``homes`` are those for which this process can publish.

    A **home** is where messages can be published: one framework, one broker, one app. Its name begins with
    the prefix of the keys and a colon, like a key, because a store may keep something under it.
    """

    call_no: int = 0
    order: int = 0
    homes: tuple[str, ...] = ()


class Wait(NamedTuple):
    """How a refused claim is to wait.

    ``message`` is what `Called.message` gives back, for those who are parked or join; the store neither reads
    nor shows it. ``life_ms`` is for the others how long they are waited for, and for those who join the time
    until their first look.
    """

    kind: Kind = Kind.PARKED
    home: str = ""
    message: bytes = b""
    life_ms: int = 0


class Called(NamedTuple):
    """A message that whoever gets this answer must publish now, with ``call_no`` and ``order`` in it.

    Then, after the broker has confirmed it, `Lining.sent`. If it cannot be published: nothing. The call
    lapses, and is made anew later.
    """

    key: str
    run_id: str
    call_no: int
    order: int
    home: str
    message: bytes


class Lined(NamedTuple):
    """The answer to a claim, what has been called by it, and the order that this run's message must carry."""

    answer: Granted | Busy
    called: tuple[Called, ...] = ()
    order: int = 0


class Released(NamedTuple):
    """Whether the token was the record's, as `Store.release` says, and what has been called by it."""

    ours: bool
    called: tuple[Called, ...] = ()


class Swept(NamedTuple):
    """What a sweep has called, and in how many seconds the next one has something to do (None: unknown)."""

    called: tuple[Called, ...] = ()
    due_in: float | None = None


class Standing(StrEnum):
    """Where somebody stands who waits."""

    READY = "ready"
    CALLED = "called"
    RESTING = "resting"
    """Passed over for a while."""
    AWAY = "away"
    """Nothing to be called by: its message was published, and its call is over."""
    OUTSIDE = "outside"
    """It takes no room: it joins another run, or is ending."""
    HAILED = "hailed"
    """The same, and it waits for a sweep of its home."""


class Waiting(NamedTuple):
    """One who waits, for operators: never its message. A time that has just passed may not show yet."""

    run_id: str
    attempt: int
    order: int
    kind: Kind
    standing: Standing
    begun: bool
    ending: bool
    home: str
    since_ms: int
    calls: int


class LineLook(NamedTuple):
    """The line of a key, for operators: how many wait, and some of them, in order."""

    waiting: int
    shown: tuple[Waiting, ...]
    now_ms: int


@runtime_checkable
class Lining(Protocol):
    """A line for each key of a `Store`, in order of arrival; one entry in it for each run.

    The one rule: a claim is granted if and only if nobody ahead of it who is called or ready needs the room.
    And every operation ends with **call**, once. Each is one atomic step, by the store's clock, and safe to
    repeat. `Store.claim`, `release` and `evict` are the same operations of somebody who can publish nothing.

    **Order.** A run's order is given at its first arrival, max(last of the key + 1, now in ms), and its
    message carries it. Where the run has no entry, it is placed by that; without one it is behind all.

    **Call** goes by order, and stops at the first ready entry that does not fit. One that does not fit by its
    window stops only those that have not begun. A listener's and a countdown's call need no message: they
    look, or come, by themselves. A message is given to whoever called if that can publish for its home; else
    its home is *hailed*: the entry is kept called for 2 s for a sweep of that home. A call lasts 5 s in hand;
    from `sent` 2 s times two to the power of the calls in a row, 60 s at most; of a countdown until its end.
    ``calls`` starts anew when the message comes in time. A call whose message never left the line (it lapsed
    in hand, or its home did not take it) leaves the entry passed over for 1 s, 2 s, 4 s … 60 s.

    **Life.** A listener that has not looked again for its ``life_ms`` leaves. An entry whose message is away
    (published, and not back) leaves after ``remember``.

    **Clocks** that step back: no time is further ahead than it can be, and every moment is due.

    While messages wait, neither line nor record is forgotten.
    """

    @property
    def lines(self) -> bool:
        """False where this server cannot keep lines after all; then none of these methods may be used."""
        ...

    def claim_in_line(self, claim: Claim, arrival: Arrival) -> Lined:
        """Claim as `Store.claim` does, but in order; what is refused is not put into the line.

        Between SAME_RUN and RUNNING comes one rule more, ENDING: the run was dropped while it waited; the
        caller ends its flow and then releases it as cancelled. And after WINDOW: RESERVED, if somebody ahead
        is called or ready; for a resumed run one whose window is not open yet is not in the way.

        Granted: the own entry leaves if the message carries the entry's call number, or if it listens or
        counts down; else its call is over, and it stays for the copy whose message it keeps, passed over
        while this attempt is live. FINISHED: an entry of this attempt or a lower one leaves. Else refused: if
        the number is the entry's, its call is over.
        """
        ...

    def park(self, claim: Claim, arrival: Arrival, wait: Wait) -> Lined:
        """Claim as `claim_in_line` does; if refused by FINISHED, ENDING or SUPERSEDED no more, else wait.

        An own entry keeps its place, and takes this message unless it has one of a higher attempt. Once this
        has returned, the caller acknowledges a message that is parked or joins. Its waiting slot is cleared.
        """
        ...

    def release_in_line(self, release: Release, homes: Sequence[str]) -> Released:
        """Release as `Store.release` does, and call.

        RETRYING removes an own entry of this attempt or a lower one. A final outcome removes it whatever its
        attempt, and has all who join published.
        """
        ...

    def sent(self, key: str, run_id: str, call_no: int) -> bool:
        """Note that a called message was published: it leaves the line, its place stays for its return.

        Only if ``call_no`` is the entry's; True if it was.
        """
        ...

    def leave(self, key: str, run_id: str, homes: Sequence[str] = ()) -> tuple[Called, ...]:
        """Give up waiting, and call."""
        ...

    def drop(self, key: str, run_id: str) -> bool:
        """Let a run that waits, has not begun and is not live, end instead of start; False for any other.

        Its entry is marked *ending*: it takes no room, is published at once whatever blocks the key, and its
        claims are refused by ENDING until a final outcome is recorded.
        """
        ...

    def sweep(self, homes: Sequence[str]) -> Swept:
        """Call at keys whose moment has come, of those where somebody waits who has one of these homes.

        A moment is the end of a lease, a window, a call, a life, of passing over; a look of who joins; a
        hail.
        At most `MAX_CALLED` messages; if more are due, the next sweep is due now. Several may sweep at once.
        """
        ...

    def line_of(self, key: str, *, most: int = 20) -> LineLook:
        """Return who waits for a key, without changing anything."""
        ...
