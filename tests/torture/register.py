"""The lease of one key as a register of holders: what the search for an order goes by.

It knows who holds, until when at least and at most, which fence came last, and which runs have ended.
Windows, waiting slots and reservations only refuse: what they promise is judged apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.torture.history import Request

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

CLOCK = 0.02
"""Seconds by which a store's clock may differ from ours over one ttl: milliseconds, and rates."""

LATE = 30.0
"""Seconds after which a request that nobody heard an answer to is not under way any more."""

SLOW = 0.1
"""A claim or release that took longer may have been sent twice: its first copy took effect, or is late."""

FORGOTTEN = 30
"""After so many other runs a store may have forgotten one that ended."""

FINAL = ("finished", "failed", "cancelled")
HELD, FREE = 1, 0


class Lease(NamedTuple):
    """The register; ``earliest`` and ``latest`` bound the end of the lease."""

    now: float = 0.0
    token: str = ""
    run: str = ""
    fence: int = 0
    untold: bool = False
    """The last grant's fence is not known: nobody heard of it yet."""
    held: int = FREE
    outcome: str = ""
    earliest: float = 0.0
    latest: float = 0.0
    grants: int = 0
    runs: tuple[tuple[str, int, bool, int], ...] = ()
    """Runs that come more than once: name, attempt, whether it ended, and the number of grants by then."""


class Register:
    """The model for `tests.torture.linearizable.search`.

    Args:
        lateness: seconds after its end for which a store may still take a lease for alive.
        repeated: runs that claim more than once; only those can be recognised.
        whole: whether all requests are there, so that it is known from whom a grant took over.
    """

    def __init__(
        self, lateness: float = 0.0, repeated: frozenset[str] = frozenset(), *, whole: bool = True
    ) -> None:
        self._lateness = lateness
        self._whole = whole
        self._repeated = repeated

    @property
    def start(self) -> Lease:
        """Nobody has ever held it."""
        return Lease()

    def next(self, state: Hashable, request: Request, before: float) -> Lease | None:
        """See `Model.next`."""
        assert isinstance(state, Lease)
        if not request.known and max(state.now, request.called) > request.called + LATE:
            return None
        at = state._replace(now=max(state.now, request.called))
        moved = getattr(self, request.what)(at, request, before)
        # What a request left as it was, it left as it was at any time.
        return state if moved == at else moved

    def claim(self, at: Lease, request: Request, before: float) -> Lease | None:
        """Grant or refuse."""
        asked, told = request.asked, request.told
        may_live = at.held == HELD and at.now < at.latest + self._lateness + CLOCK
        may_be_over = at.held == FREE or before > at.earliest - CLOCK
        mine = at.token == asked["token"]
        ended = self._ended(at, asked, FORGOTTEN)
        if request.answer == "busy":
            return self._refused(at, request, before, may_live=may_live, may_be_over=may_be_over)
        if may_live and mine and not request.known:
            return at
        if may_live and mine and (told["fence"] == at.fence or (at.untold and told["fence"] > at.fence)):
            return at._replace(fence=told["fence"], untold=False)  # the same again: its first reply was lost
        if ended or not may_be_over:
            return None
        took_over = at.held == HELD and not mine
        untrue = request.known and self._whole and told["took_over"] != took_over
        if untrue or (request.known and told["fence"] <= at.fence):
            return None
        now = at.now if at.held == FREE else max(at.now, at.earliest - CLOCK)
        return at._replace(
            now=now,
            token=asked["token"],
            run=asked["run_id"],
            fence=told["fence"] if request.known else at.fence,
            untold=not request.known,
            held=HELD,
            outcome="",
            earliest=now + asked["ttl_ms"] / 1000,
            latest=before + asked["ttl_ms"] / 1000,
            grants=at.grants + 1,
            runs=self._marked(at, asked["run_id"], asked["attempt"], ended=False),
        )

    def renew(self, at: Lease, request: Request, before: float) -> Lease | None:
        """Renew or not."""
        asked = request.asked
        good = at.token == asked["token"] and at.held == HELD and not at.outcome
        if request.answer == "restored" or (request.known and good != (request.answer == "renewed")):
            return None
        if not good:
            return at
        ttl = asked["ttl_ms"] / 1000
        return at._replace(earliest=at.now + ttl, latest=before + ttl)

    def release(self, at: Lease, request: Request, before: float) -> Lease | None:
        """End the lease if it is the token's, and the run if this was its end."""
        asked = request.asked
        own = bool(at.grants) and at.token == asked["token"]
        if request.known and own != (request.answer == "ours"):
            return None
        outcome, runs = asked["outcome"], at.runs
        if outcome in FINAL:
            runs = self._marked(at, asked["run_id"], 1 << 30, ended=True)
        elif outcome == "retrying":
            runs = self._marked(at, asked["run_id"], asked["attempt"], ended=True)
        at = at._replace(runs=runs)
        if not own or at.held == FREE:
            return at
        at = at._replace(outcome=at.outcome or outcome)
        if not asked["grace_ms"]:
            return at._replace(held=FREE)
        grace = asked["grace_ms"] / 1000
        return at._replace(earliest=min(at.earliest, at.now + grace), latest=min(at.latest, before + grace))

    def _refused(
        self, at: Lease, request: Request, before: float, *, may_live: bool, may_be_over: bool
    ) -> Lease | None:
        reason, run = request.told["reason"], request.told["run"]
        if reason == "finished":
            return at if self._ended(at, request.asked) else None
        if reason in ("running", "same_run"):
            if at.token == request.asked["token"] and at.held == HELD and before < at.earliest - CLOCK:
                return None  # its own lease, certainly alive: it is the same claim again
            same = at.run == request.asked["run_id"]
            fits = may_live and same == (reason == "same_run") and run == at.run
            return at if fits else None
        return at if may_be_over else None

    def _ended(self, at: Lease, asked: dict[str, Any], within: int = 1 << 30) -> bool:
        for name, attempt, ended, grants in at.runs:
            if name == asked["run_id"] and at.grants - grants < within:
                return (attempt, ended) >= (asked["attempt"], True)
        return False

    def _marked(
        self, at: Lease, run: str, attempt: int, *, ended: bool
    ) -> tuple[tuple[str, int, bool, int], ...]:
        if run not in self._repeated:
            return at.runs
        before = next(((one[1], one[2]) for one in at.runs if one[0] == run), (-1, False))
        if before >= (attempt, ended):
            return at.runs
        others = tuple(one for one in at.runs if one[0] != run)
        return (*others, (run, attempt, ended, at.grants))


def register_for(requests: Sequence[Request], about: dict[str, Any]) -> Register:
    """Return the register by which the requests of one key are judged."""
    return Register(about.get("lateness", 0.0), repeated(requests), whole="part" not in about)


def repeated(requests: Sequence[Request]) -> frozenset[str]:
    """Return the runs that claim more than once."""
    seen: dict[str, set[str]] = {}
    for one in requests:
        if one.what == "claim":
            seen.setdefault(one.asked["run_id"], set()).add(one.id)
    return frozenset(run for run, claims in seen.items() if len(claims) > 1)


def with_echoes(requests: Sequence[Request]) -> list[Request]:
    """Return the requests, and beside each slow one the copy that may have gone before, or be under way."""
    echoes = [
        Request(f"{one.id}-echo", one.who, one.what, one.key, one.asked, one.called)
        for one in requests
        if one.what in ("claim", "release") and one.known and one.returned - one.called > SLOW
    ]
    return [*requests, *echoes]
