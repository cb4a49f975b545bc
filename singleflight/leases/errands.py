"""What the keeper does at one store: renewals and late releases, each kind in a thread of its own."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.events import Kind
from singleflight.lease import renewal_interval
from singleflight.leases.breaker import Breaker
from singleflight.leases.renewing import NEVER, Kept
from singleflight.leases.timer import RETRY
from singleflight.log import logger
from singleflight.stores.base import Renewed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from singleflight.leases.releasing import OpenRelease
    from singleflight.stores.base import Store

BATCH_SIZE = 250
"""How many renewals go out in one request: more would not be answered within the timeout of one."""

LOOK = 0.25
"""Seconds after which a round of renewals looks for what has become more urgent meanwhile."""

FAILURES = 2
"""How many requests without an answer end a round: one may be a part of the store, two are the store."""


class Books(Protocol):
    """What the keeper's books say of one store, and where news of its leases goes."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds."""
        ...

    def leases_in(self, store: Store) -> list[Kept]:
        """Return the leases that are held in a store."""
        ...

    def releases_in(self, store: Store) -> list[OpenRelease]:
        """Return the releases in a store that are not through."""
        ...

    def attempt(self, open_release: OpenRelease) -> bool | None:
        """Try a release: was the lease ours? None if the store is away."""
        ...

    def lose(self, kept: Kept, why: str) -> None:
        """Tell that a lease is lost."""
        ...

    def regain(self, kept: Kept) -> None:
        """Tell that a lease is trusted again."""
        ...

    def tell(self, kept: Kept, kind: Kind, reason: str) -> None:
        """Report something else."""
        ...


class Errands:
    """The errands at one store; whatever it does, it costs its own leases only."""

    def __init__(self, store: Store, books: Books) -> None:
        self.store = store
        self._books = books
        self._outage = Breaker(RETRY, books.clock)
        self.busy: set[type] = set()
        """What is under way: renewals of `Kept` ones, tries at each `OpenRelease`."""

    def run(self, kind: type) -> None:
        """Do what is due of one kind."""
        if kind is Kept:
            self.renew_due()
        else:
            self.release_due()

    def renew_due(self) -> None:
        """Renew what is due, until nothing is or the store does not answer."""
        failures = 0
        for batch in self._batches():
            try:
                answered = self.renew(batch)
            except BaseException as error:  # noqa: BLE001 - no store may raise it, but it is asked again
                self._fail(batch, repr(error))
                answered = False
            failures = 0 if answered else failures + 1
            if failures == FAILURES:
                self._put_off(self._due())
                return

    def release_due(self) -> None:
        """Try late releases, the longest untried first, until the store does not answer."""
        now, away = self._books.clock(), False
        due = [
            open_release for open_release in self._books.releases_in(self.store) if open_release.due <= now
        ]
        for open_release in sorted(due, key=attrgetter("tried")):
            if away and now < open_release.until:
                open_release.due = self._books.clock() + RETRY
                continue
            open_release.tried = now
            try:
                ours = self._books.attempt(open_release)
            except BaseException:  # noqa: BLE001 - no store may raise it, but the other releases must go on
                logger.exception("singleflight: a store broke its promise at a release")
                ours = None
            if ours is None:
                open_release.due = self._books.clock() + RETRY
                away = True

    def renew(self, group: Sequence[Kept]) -> bool:
        """Renew some leases in one request; False if the store gives no answer about any of them."""
        sent = self._books.clock()
        try:
            answers = self.store.renew([kept.renewal(sent) for kept in group])
        except (StoreUnavailable, ConfigurationError) as error:
            self._fail(group, str(error))
            return False
        unanswered, why = [], ""
        for kept, answer in zip(group, answers, strict=True):
            if isinstance(answer, Renewed):
                self._note(kept, answer, sent)
            else:
                unanswered.append(kept)
                why = str(answer)
        if unanswered:
            self._fail(unanswered, why)
        else:
            self._outage.answered()
        return len(unanswered) < len(group)

    def _due(self) -> list[Kept]:
        """Return what is due, the most urgent first; after it, what was asked about and not answered.

        Nothing if all are only nearly due: among many leases there is always one more of these.
        """
        now = self._books.clock()
        due = [kept for kept in self._books.leases_in(self.store) if kept.is_due(now)]
        if all(kept.due > now for kept in due):
            return []
        return sorted(due, key=lambda kept: (kept.unanswered, kept.lease.trusted_until))

    def _batches(self) -> Iterator[list[Kept]]:
        """Yield what is due, a batch at a time."""
        while due := self._due():
            look = self._books.clock() + LOOK
            for start in range(0, len(due), BATCH_SIZE):
                yield due[start : start + BATCH_SIZE]
                if self._books.clock() >= look:
                    break

    def _fail(self, group: Sequence[Kept], why: str) -> None:
        """Note that these were not answered; an outage is told once, at its start."""
        for kept in group:
            kept.unanswered = True
        self._put_off(group)
        self._outage.failed(why)
        if self._outage.is_news():
            self._books.tell(group[0], Kind.STORE_ERROR, f"{len(group)} not renewed: {why}")

    def _put_off(self, group: Sequence[Kept]) -> None:
        """Renew again soon."""
        for kept in group:
            kept.due = self._books.clock() + min(RETRY, renewal_interval(kept.lease.ttl))

    def _note(self, kept: Kept, answer: Renewed, sent: float) -> None:
        """Note the store's answer to one renewal."""
        if answer is Renewed.LOST:
            if kept.lease.end():
                self._books.lose(kept, "another delivery has it, or it was evicted")
            kept.due = NEVER
            return
        kept.confirm(sent)
        kept.lease.renewed(sent)
        if answer is Renewed.RESTORED:
            self._books.tell(kept, Kind.RESTORED, "the record had vanished from the store")
        if kept.told:
            self._books.regain(kept)
