"""The line of a store that decides in Python: all it has to bring is a `Line`, written with the record."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from singleflight.stores import line_rules
from singleflight.stores.bounds import check_claim, check_place, check_release, check_wait
from singleflight.stores.deciding import DecidingStore
from singleflight.stores.line import NoLine
from singleflight.stores.line_call import Step
from singleflight.stores.lining import MAX_CALLED, MAX_CALLED_BYTES, Arrival, LineLook, Swept, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight.lease import Busy, Granted
    from singleflight.stores.base import Claim, Record, Release
    from singleflight.stores.line import Entry, Line
    from singleflight.stores.lining import Called, Lined, Released, Wait

Answer = TypeVar("Answer")


class DecidingLine(DecidingStore):
    """Implements `Lining` on top of what `DecidingStore` needs, and three operations more."""

    lines = True

    @abstractmethod
    def change_line(
        self, key: str, decide: Callable[[Record | None, Line, int], tuple[Record | None, Answer]]
    ) -> Answer:
        """Do what `change` does, and let ``decide`` change the key's line in the same atomic step."""

    @abstractmethod
    def read_line(self, key: str, most: int) -> tuple[int, Sequence[Entry], int]:
        """Return how many stand in a key's line, the first of them, and the store's clock in milliseconds."""

    @abstractmethod
    def due_keys(self, homes: Sequence[str], most: int) -> tuple[Sequence[str], int | None]:
        """Return keys that are due by the indexes of these homes, and the ms until the next one is.

        Where the clock is earlier than at the latest look, every key is due.
        """

    def claim(self, claim: Claim) -> Granted | Busy:
        """See `Store.claim`."""
        return self.claim_in_line(claim, Arrival()).answer

    def claim_in_line(self, claim: Claim, arrival: Arrival) -> Lined:
        """See `Lining.claim_in_line`."""
        check_claim(claim)
        return self._step(
            claim.key,
            arrival.homes,
            lambda step: line_rules.claim(step, claim, arrival, counting=self.counts_refusals),
        )

    def park(self, claim: Claim, arrival: Arrival, wait: Wait) -> Lined:
        """See `Lining.park`."""
        check_claim(claim)
        check_wait(wait)
        return self._in_line(
            claim.key, arrival.homes, lambda step: line_rules.claim(step, claim, arrival, wait)
        )

    def release(self, release: Release) -> bool:
        """See `Store.release`."""
        return self.release_in_line(release, ()).ours

    def release_in_line(self, release: Release, homes: Sequence[str]) -> Released:
        """See `Lining.release_in_line`."""
        check_release(release)
        return self._step(release.key, homes, lambda step: line_rules.release(step, release))

    def evict(self, key: str) -> bool:
        """See `Store.evict`."""
        return self._step(key, (), line_rules.evict)

    def sent(self, key: str, run_id: str, call_no: int) -> bool:
        """See `Lining.sent`."""
        return self._in_line(
            key, (), lambda step: line_rules.sent(step, run_id, call_no, remember_ms=self._remember_ms)
        )

    def leave(self, key: str, run_id: str, homes: Sequence[str] = ()) -> tuple[Called, ...]:
        """See `Lining.leave`."""
        check_place(run_id)
        return self._in_line(key, homes, lambda step: line_rules.leave(step, run_id))

    def drop(self, key: str, run_id: str) -> bool:
        """See `Lining.drop`."""
        check_place(run_id)
        return self._in_line(key, (), lambda step: line_rules.drop(step, run_id))

    def sweep(self, homes: Sequence[str]) -> Swept:
        """See `Lining.sweep`."""
        called: list[Called] = []
        keys, due_in_ms = self.due_keys(homes, MAX_CALLED)
        for key in keys:
            if len(called) >= MAX_CALLED or sum(len(one.message) for one in called) >= MAX_CALLED_BYTES:
                break
            called += self._in_line(key, homes, line_rules.look)
        if keys:
            due_in_ms = 0
        return Swept(tuple(called), None if due_in_ms is None else due_in_ms / 1000)

    def line_of(self, key: str, *, most: int = 20) -> LineLook:
        """See `Lining.line_of`."""
        waiting, entries, now_ms = self.read_line(key, most)
        alive = [entry for entry in entries if not entry.ends_ms or entry.ends_ms > now_ms]
        return LineLook(waiting, tuple(map(_shown, alive)), now_ms)

    def _step(
        self, key: str, homes: Sequence[str], work: Callable[[Step], tuple[Record | None, Answer]]
    ) -> Answer:
        """Do an operation without looking at the line if the record says that nobody waits."""

        def decide(found: Record | None, now_us: int) -> tuple[Record | None, Answer | None]:
            if found is not None and found.waiting:
                return None, None
            return _decided(work, key, homes, found, NoLine(), now_us)

        answer = self.change(key, decide)
        return self._in_line(key, homes, work) if answer is None else answer

    def _in_line(
        self, key: str, homes: Sequence[str], work: Callable[[Step], tuple[Record | None, Answer]]
    ) -> Answer:
        return self.change_line(
            key, lambda found, line, now_us: _decided(work, key, homes, found, line, now_us)
        )


def _decided(
    work: Callable[[Step], tuple[Record | None, Answer]],
    key: str,
    homes: Sequence[str],
    found: Record | None,
    line: Line,
    now_us: int,
) -> tuple[Record | None, Answer]:
    return work(Step(key, found, line, now_us, homes))


def _shown(entry: Entry) -> Waiting:
    return Waiting(**{name: getattr(entry, name) for name in Waiting._fields})
