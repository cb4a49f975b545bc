"""The keeper: renews this process's leases, tells holders what they lost, gives back what is late."""

from __future__ import annotations

import atexit
import os
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.events import Kind, logger, short_key
from singleflight.lease import Outcome, monotonic, renewal_interval
from singleflight.leases.releasing import Parting, release_of
from singleflight.leases.renewing import NEVER, Kept
from singleflight.leases.timer import RETRY, Watch
from singleflight.stores.base import Renewed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight.events import Notify
    from singleflight.lease import Lease
    from singleflight.stores.base import Release, Store

HANDS_OFF = 2.0
"""Seconds for which a release is left to the thread that asked for it, before the keeper tries as well."""


class Keeper:
    """Renews leases every ttl/3, in one request per store, and tells holders when they have lost one.

    Two threads start with the first lease and survive every error. One talks to the stores. The other only
    looks at the clock, because a request may hang for longer than any timeout (looking up a host's name has
    none), and a holder must learn in time that its lease cannot be trusted.

    A forked child never touches its parent's keeper: it neither renews nor releases leases of another
    process.

    Args:
        clock: seconds that go on at an even pace, also while the machine sleeps.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._pid = os.getpid()
        # By token: a lease in hand, then its release until that is through. To give back is one assignment,
        # so an exception raised into the calling thread finds the one or the other.
        self._books: dict[str, Kept | Parting] = {}
        self._lock = threading.RLock()
        self._silent: set[int] = set()
        """Stores that have been reported to give no answer."""
        self._errands = Watch("singleflight-keeper", self.run_errands, clock)
        self._alarm = Watch("singleflight-alarm", self.raise_alarms, clock)

    def hold(
        self,
        lease: Lease,
        store: Store,
        notify: Notify,
        *,
        on_lost: Callable[[Lease], None] | None = None,
        owner: Callable[[], object] | None = None,
    ) -> None:
        """Renew a lease until it is released or lost.

        ``on_lost`` is called in a thread of the keeper when the lease cannot be trusted any more. ``owner``
        is a weak reference to whoever must release: when it is dead, the keeper releases as REQUEUED.
        """
        kept = Kept(lease, store, notify, on_lost, owner)
        with self._lock:
            self._books[lease.token] = kept
        self._errands.rouse(kept.due)
        self._alarm.rouse(lease.trusted_until)

    def renew_now(self, lease: Lease) -> None:
        """Renew one lease in the calling thread; a store that is away changes nothing."""
        if self._pid != os.getpid():
            return
        kept = self._books.get(lease.token)
        if isinstance(kept, Kept) and kept.due != NEVER:
            self._renew([kept])

    def give_back(self, lease: Lease, outcome: Outcome, *, grace: float = 0, again: float = 0) -> bool:
        """Stop renewing and release; if the store is away, the keeper goes on trying until the ttl is over.

        The release is on the books before the request goes out, so that an exception raised into the
        calling thread (a soft time limit) cannot lose it.
        """
        if self._pid != os.getpid():
            return False
        hands_off = min(HANDS_OFF, renewal_interval(lease.ttl))
        release = release_of(lease, outcome, grace=grace, again=again, began=lease.began)
        with self._lock:
            kept = self._books.get(lease.token)
            if not isinstance(kept, Kept):
                return False
            parting = self._part(kept, release, hands_off)
        try:
            ours = self._attempt(parting)
        except BaseException:
            # The keeper's thread may sleep for longer than anybody wants to wait for the key.
            self._errands.rouse(parting.due)
            raise
        if ours is None:
            parting.due = self.clock() + RETRY
            self._errands.rouse(parting.due)
        elif not ours and not kept.told:
            kept.tell(Kind.LOST, "found out when it was released", self.clock())
        kept.tell(Kind.RELEASED, str(outcome), self.clock())
        return bool(ours)

    def send(self, release: Release, store: Store, *, patience: float) -> None:
        """Release from the keeper's thread, for up to ``patience`` seconds: the caller must not wait.

        For a process that died, or a claim whose answer nobody heard. Nothing happens if the lease was never
        granted, or if its process has said itself how the run ended: it may have published a retry or a
        deferred copy, which a final outcome would turn into a late copy.
        """
        now = self.clock()
        with self._lock:
            self._books[release.token] = Parting(release, store, now + patience, due=now, unless_over=True)
        self._errands.rouse(now)

    def stop(self, patience: float = 1.0) -> None:
        """Try open releases once more and end the threads, within ``patience`` seconds."""
        if self._pid != os.getpid():
            return
        for entry in self._entries():
            if isinstance(entry, Parting):
                entry.due = 0.0
        self._alarm.stop(0)
        self._errands.stop(patience)

    def run_errands(self) -> float:
        """Renew what is due and try open releases, all that talks to stores; return when to come again."""
        now = self.clock()
        due: dict[int, list[Kept]] = defaultdict(list)
        for kept in self._leases():
            if kept.abandoned:
                self._give_up(kept)
            elif kept.is_due(now):
                due[id(kept.store)].append(kept)
        for group in due.values():
            try:
                self._renew(group)
            except Exception as error:  # noqa: BLE001 - no store may raise it, but leases elsewhere need their renewal
                self._put_off(group, repr(error))
        self._attempt_all()
        return min((entry.due for entry in self._entries()), default=NEVER)

    def raise_alarms(self) -> float:
        """Tell the holders of what could not be confirmed in time; return when to come again."""
        now, moment = self.clock(), NEVER
        for kept in self._leases():
            if kept.told:
                continue
            if now >= kept.lease.trusted_until:
                self._lose(kept, "max_hold is over" if kept.due == NEVER else "not confirmed in time")
            else:
                moment = min(moment, kept.lease.trusted_until)
        return moment

    def _entries(self) -> list[Kept | Parting]:
        with self._lock:
            return list(self._books.values())

    def _leases(self) -> list[Kept]:
        return [entry for entry in self._entries() if isinstance(entry, Kept)]

    def _part(self, kept: Kept, release: Release, hands_off: float) -> Parting:
        """Put a release on the books in place of the lease; called under the lock."""
        now = self.clock()
        parting = Parting(release, kept.store, until=now + kept.lease.ttl, due=now + hands_off)
        self._books[kept.lease.token] = parting
        kept.lease.end()
        return parting

    def _give_up(self, kept: Kept) -> None:
        """Part with a lease whose owner is gone."""
        release = release_of(kept.lease, Outcome.REQUEUED, began=kept.lease.began)
        with self._lock:
            if self._books.get(kept.lease.token) is not kept:
                return
            self._part(kept, release, hands_off=0)
        kept.tell(Kind.RELEASED, str(Outcome.REQUEUED), self.clock())

    def _renew(self, group: Sequence[Kept]) -> None:
        """Renew leases of one store in one request."""
        sent, store = self.clock(), group[0].store
        try:
            answers = store.renew([kept.renewal(sent) for kept in group])
        except (StoreUnavailable, ConfigurationError) as error:
            self._put_off(group, str(error))
            return
        unanswered, why = [], ""
        for kept, answer in zip(group, answers, strict=True):
            if isinstance(answer, Renewed):
                self._note(kept, answer, sent)
            else:
                unanswered.append(kept)
                why = str(answer)
        if unanswered:
            self._put_off(unanswered, why)
        else:
            self._silent.discard(id(store))

    def _put_off(self, group: Sequence[Kept], why: str) -> None:
        """Renew again soon; an outage is reported once, at its start."""
        for kept in group:
            kept.due = self.clock() + min(RETRY, renewal_interval(kept.lease.ttl))
        silent = id(group[0].store)
        if silent not in self._silent:
            self._silent.add(silent)
            group[0].tell(Kind.STORE_ERROR, f"{len(group)} not renewed: {why}", self.clock())

    def _note(self, kept: Kept, answer: Renewed, sent: float) -> None:
        """Note the store's answer to one renewal."""
        if answer is Renewed.LOST:
            if kept.lease.end():
                self._lose(kept, "another delivery has it, or it was evicted")
            kept.due = NEVER
            return
        kept.confirm(sent)
        kept.lease.renewed(sent)
        if answer is Renewed.RESTORED:
            kept.tell(Kind.RESTORED, "the record had vanished from the store", self.clock())
        if kept.told:
            kept.told = False
            self._alarm.rouse(kept.lease.trusted_until)
            kept.tell(Kind.REGAINED, "nobody else took it", self.clock())

    def _lose(self, kept: Kept, why: str) -> None:
        """Tell a holder, once; first the one who must act, then those who listen."""
        with self._lock:
            if kept.told or self._books.get(kept.lease.token) is not kept:
                return
            kept.told = True
        if kept.on_lost is not None:
            try:
                kept.on_lost(kept.lease)
            except Exception:  # noqa: BLE001 - the other holders want to know as well
                logger.exception("singleflight: on_lost failed for %s", short_key(kept.lease.key))
        kept.tell(Kind.LOST, why, self.clock())

    def _attempt_all(self) -> None:
        """Try open releases, the longest untried first, but wait for a store that is away only once."""
        partings = [entry for entry in self._entries() if isinstance(entry, Parting)]
        away: set[int] = set()
        for parting in sorted(partings, key=lambda parting: parting.due):
            now = self.clock()
            if parting.due > now or (id(parting.store) in away and now < parting.until):
                continue
            try:
                ours = self._attempt(parting)
            except Exception:  # noqa: BLE001 - no store may raise it, but the other releases must go on
                logger.exception("singleflight: a store broke its promise at a release")
                ours = None
            if ours is None:
                parting.due = self.clock() + RETRY
                away.add(id(parting.store))

    def _attempt(self, parting: Parting) -> bool | None:
        """Try one release: was the lease ours? None if the store is away."""
        ours = parting.attempt(self.clock())
        token = parting.release.token
        with self._lock:
            if ours is not None and self._books.get(token) is parting:
                del self._books[token]
        return ours


class _Process:
    """The one piece of global state: this process's keeper, which has no thread before its first lease."""

    keeper = Keeper()

    @classmethod
    def renew(cls) -> None:
        """Start afresh in a forked child."""
        cls.keeper = Keeper()


os.register_at_fork(after_in_child=_Process.renew)


def process_keeper() -> Keeper:
    """Return this process's keeper."""
    return _Process.keeper


@atexit.register
def _stop() -> None:
    process_keeper().stop()
