"""The operations of a store that decides in Python: all it has to bring is a read and a conditional write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

from singleflight.errors import SingleflightError
from singleflight.stores import record_rules as rules
from singleflight.stores.base import REMEMBER, Look, Renewed
from singleflight.stores.bounds import check_claim, check_place, check_release

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight.lease import Busy, Granted
    from singleflight.stores.base import Claim, Record, Release, Renewal

Answer = TypeVar("Answer")


class DecidingStore(ABC):
    """Implements `Store` on top of `change` and `read`, by the rules in `singleflight.stores.record_rules`.

    Args:
        remember: seconds for which an ended run is recognised.
    """

    def __init__(self, *, remember: float = REMEMBER) -> None:
        self.remember = remember

    counts_refusals: ClassVar[bool] = False
    """Whether refused claims are counted: not where such a write makes others decide again."""

    @abstractmethod
    def change(
        self, key: str, decide: Callable[[Record | None, int], tuple[Record | None, Answer]]
    ) -> Answer:
        """Read a record, let ``decide`` change it, write what it returns, and return its answer.

        ``decide`` gets the record (None: there is none, or its life is over) and the store's clock in epoch
        microseconds, and returns the record to write and the answer. A record that came back None or
        unchanged need not be written. Nobody may come between read and write: if somebody did, read and
        decide again. A written record lives until `life_ends`.
        """

    @abstractmethod
    def read(self, key: str) -> tuple[Record | None, int, int]:
        """Return a record, the end of its life and the store's clock, both in epoch milliseconds."""

    def life_ends(self, record: Record, now_us: int) -> int:
        """Return until when a record that is written now must be kept, in epoch milliseconds."""
        return rules.life_ends(record, now_us // 1000, self._remember_ms)

    def claim(self, claim: Claim) -> Granted | Busy:
        """See `Store.claim`."""
        check_claim(claim)
        return self.change(
            claim.key,
            lambda found, now_us: rules.claim(
                found, claim, now_us // 1000, tick=now_us, counting=self.counts_refusals
            ),
        )

    def renew(self, renewals: Sequence[Renewal]) -> list[Renewed | SingleflightError]:
        """See `Store.renew`; a key in trouble does not hinder others, a store in trouble is asked twice."""
        answers: list[Renewed | SingleflightError] = []
        for renewal in renewals:
            in_a_row = [answer for answer in answers[-2:] if isinstance(answer, SingleflightError)]
            if len(in_a_row) == 2:  # noqa: PLR2004 - one is a key in trouble, two are the store
                answers.append(in_a_row[1])
                continue
            try:
                answers.append(self._renew(renewal))
            except SingleflightError as error:
                answers.append(error)
        errors = [answer for answer in answers if isinstance(answer, SingleflightError)]
        if errors and len(errors) == len(answers):
            raise errors[0]
        return answers

    def release(self, release: Release) -> bool:
        """See `Store.release`."""
        check_release(release)
        return self.change(release.key, lambda found, now_us: rules.release(found, release, now_us // 1000))

    def queue(self, key: str, run_id: str, *, ttl_ms: int, running_too: bool) -> Busy | None:
        """See `Store.queue`."""
        check_place(run_id, ttl_ms)
        return self.change(
            key,
            lambda found, now_us: rules.queue(
                found, run_id, now_us // 1000, ttl_ms=ttl_ms, running_too=running_too
            ),
        )

    def unqueue(self, key: str, run_id: str) -> bool:
        """See `Store.unqueue`."""
        check_place(run_id)
        return self.change(key, lambda found, now_us: rules.unqueue(found, run_id, now_us // 1000))

    def evict(self, key: str) -> bool:
        """See `Store.evict`."""
        return self.change(key, lambda found, now_us: rules.evict(found, now_us // 1000))

    def peek(self, key: str) -> Look | None:
        """See `Store.peek`."""
        record, ends_ms, now_ms = self.read(key)
        if record is None:
            return None
        remaining_ms = self._remember_ms if record.parked else ends_ms - now_ms
        return Look(rules.repaired(record, now_ms), now_ms, remaining_ms)

    @property
    def _remember_ms(self) -> int:
        return round(self.remember * 1000)

    def _renew(self, renewal: Renewal) -> Renewed:
        return self.change(renewal.key, self._renewing(renewal))

    def _renewing(self, renewal: Renewal) -> Callable[[Record | None, int], tuple[Record | None, Renewed]]:
        """Return what decides a renewal."""
        return lambda found, now_us: rules.renew(
            found, renewal, now_us // 1000, remember_ms=self._remember_ms
        )
