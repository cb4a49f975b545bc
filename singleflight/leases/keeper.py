"""The keeper: renews this process's leases, tells holders what they lost, gives back what is late."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from singleflight.events import Kind
from singleflight.lease import Outcome, monotonic, renewal_interval
from singleflight.leases.errands import Errands
from singleflight.leases.lanes import Lanes
from singleflight.leases.releasing import OpenRelease, release_of
from singleflight.leases.renewing import NEVER, Kept
from singleflight.leases.telling import Telling
from singleflight.leases.timer import RETRY, Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.events import Notify
    from singleflight.lease import Lease
    from singleflight.stores.base import Release, Store

HANDS_OFF = 2.0
"""Seconds for which a release is left to the thread that asked for it, before the keeper tries as well."""


class Keeper:
    """Renews leases every ttl/3, in few requests per store, and tells holders when they have lost one.

    One thread only looks at the clock: it talks to no store, no holder and no listener, because each of them
    may hang, and a holder must learn in time that its lease cannot be trusted. What is due, other threads
    do: for each store one that renews and one that gives back what is late, when there is anything, so that
    a store that hangs costs its own leases and no others. Holders and listeners are told by others again.
    All of them survive every error.

    A forked child never touches its parent's keeper: it neither renews nor releases leases of another
    process.

    Args:
        clock: seconds that go on at an even pace, also while the machine sleeps.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.stop_timeout = 1.0
        """Seconds that `stop` takes at most if it is not told otherwise."""
        self._pid = os.getpid()
        # By token: a lease in hand, then its release until that is through. To give back is one assignment,
        # so an exception raised into the calling thread finds the one or the other.
        self._books: dict[str, Kept | OpenRelease] = {}
        self._lock = threading.RLock()
        self._stores: dict[int, Errands] = {}
        self._threads = Lanes("singleflight-keeper")
        self._telling = Telling(clock)
        self._timer = Timer("singleflight-clock", self.look, clock)

    @property
    def is_ours(self) -> bool:
        """Whether it is this process's, and not that of the parent of a fork."""
        return self._pid == os.getpid()

    def prepare(self) -> None:
        """See to the threads before a lease is claimed, which nobody could renew without them.

        Raises:
            ConfigurationError: if Python is shutting down and starts no thread any more.
        """
        if not self._timer.started:
            self._timer.start()

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
        self._timer.rouse(kept.due)  # long before it could be lost

    def renew_now(self, lease: Lease) -> None:
        """Renew one lease in the calling thread; a store that is away changes nothing."""
        if not self.is_ours:
            return
        kept = self._books.get(lease.token)
        if isinstance(kept, Kept) and kept.is_renewed(self.clock()):
            self._errands(kept.store).renew([kept])

    def give_back(self, lease: Lease, outcome: Outcome, *, grace: float = 0, again: float = 0) -> bool:
        """Stop renewing and release; if the store is away, the keeper goes on trying until the ttl is over.

        The release is on the books before the request goes out, so that an exception raised into the
        calling thread (a soft time limit) cannot lose it.
        """
        if not self.is_ours:
            return False
        hands_off = min(HANDS_OFF, renewal_interval(lease.ttl))
        release = release_of(lease, outcome, grace=grace, again=again, began=lease.began)
        with self._lock:
            kept = self._books.get(lease.token)
            if not isinstance(kept, Kept):
                return False
            open_release = self._part(kept, release, hands_off)
        try:
            ours = self.attempt(open_release)
        except BaseException:
            # The keeper's thread may sleep for longer than anybody wants to wait for the key.
            self._timer.rouse(open_release.due)
            raise
        if ours is None:
            open_release.due = self.clock() + RETRY
            self._timer.rouse(open_release.due)
        elif not ours and not kept.told:
            kept.tell(Kind.LOST, "found out when it was released", self.clock())
        kept.tell(Kind.RELEASED, str(outcome), self.clock())
        return bool(ours)

    def send(self, release: Release, store: Store, *, timeout: float) -> None:
        """Release from the keeper's thread, for up to ``timeout`` seconds: the caller must not wait.

        For a process that died, or a claim whose answer nobody heard. Nothing happens if the lease was never
        granted, or if its process has said itself how the run ended: it may have published a retry or a
        deferred copy, which a final outcome would turn into a late copy.
        """
        now = self.clock()
        with self._lock:
            self._books[release.token] = OpenRelease(release, store, now + timeout, due=now, unless_over=True)
        self._timer.rouse(now)

    def stop(self, timeout: float | None = None) -> None:
        """Try open releases once more and end the threads, within ``timeout`` seconds."""
        if not self.is_ours:
            return
        timeout = self.stop_timeout if timeout is None else timeout
        end = monotonic() + timeout
        for entry in self._entries():
            if isinstance(entry, OpenRelease):
                entry.due = 0.0
        self._timer.stop(timeout)
        self._threads.stop(end - monotonic())
        self._telling.stop(end - monotonic())

    def look(self) -> float:
        """Tell holders of what could not be confirmed in time, and have done what is due.

        Waits for nothing, so that it is in time. Returns when to look again.
        """
        with suppress(RuntimeError):  # Python is shutting down: what is due is done here
            self._threads.ready()
        now, moment = self.clock(), NEVER
        stores = {name: errands for name, errands in self._stores.items() if errands.busy}
        due: dict[tuple[int, type], Errands] = {}
        for each in self._entries():
            entry: Kept | OpenRelease | None = each
            if isinstance(each, Kept):
                moment = min(moment, self._alarm(each, now))
                if each.abandoned:
                    entry = self._give_up(each)
            if entry is None:
                continue
            store = id(entry.store)
            if store not in stores:
                stores[store] = self._errands(entry.store)
            if type(entry) in stores[store].busy:
                continue  # looks again when it is done
            if entry.due <= now:
                due[store, type(entry)] = stores[store]
            else:
                moment = min(moment, entry.due)
        self._stores = stores
        for (_, kind), errands in due.items():
            self._have_done(errands, kind)
        return moment

    def leases_in(self, store: Store) -> list[Kept]:
        """Return the leases that are held in a store."""
        return [entry for entry in self._entries() if isinstance(entry, Kept) and entry.store is store]

    def releases_in(self, store: Store) -> list[OpenRelease]:
        """Return the releases in a store that are not through."""
        return [entry for entry in self._entries() if isinstance(entry, OpenRelease) and entry.store is store]

    def attempt(self, open_release: OpenRelease) -> bool | None:
        """Try one release: was the lease ours? None if the store is away."""
        ours = open_release.attempt(self.clock())
        token = open_release.release.token
        with self._lock:
            if ours is not None and self._books.get(token) is open_release:
                del self._books[token]
        return ours

    def lose(self, kept: Kept, why: str) -> None:
        """Tell a holder, once; first the one who must act, then those who listen."""
        with self._lock:
            if kept.told or self._books.get(kept.lease.token) is not kept:
                return
            kept.told = True
        self._telling.lost(kept)
        self._telling.tell(kept, Kind.LOST, why)

    def regain(self, kept: Kept) -> None:
        """Tell that a lease is trusted again."""
        kept.told = False
        self._timer.ring(kept.lease.trusted_until)
        self._telling.tell(kept, Kind.REGAINED, "nobody else took it")

    def tell(self, kept: Kept, kind: Kind, reason: str) -> None:
        """Report something of a lease, from another thread."""
        self._telling.tell(kept, kind, reason)

    def _entries(self) -> list[Kept | OpenRelease]:
        with self._lock:
            return list(self._books.values())

    def _errands(self, store: Store) -> Errands:
        return self._stores.setdefault(id(store), Errands(store, self))

    def _alarm(self, kept: Kept, now: float) -> float:
        """Raise the alarm if a lease cannot be trusted any more; return when that will be."""
        if kept.told:
            return NEVER
        if now < kept.lease.trusted_until:
            return kept.lease.trusted_until
        self.lose(kept, "max_hold is over" if kept.due == NEVER else "not confirmed in time")
        return NEVER

    def _have_done(self, errands: Errands, kind: type) -> None:
        """Have an errand done in another thread, and look again afterwards."""

        def work() -> None:
            try:
                errands.run(kind)
            finally:
                errands.busy.discard(kind)
                self._timer.ring(self.clock())

        errands.busy.add(kind)
        try:
            self._threads.put((id(errands.store), kind), work)
        except RuntimeError:
            work()

    def _part(self, kept: Kept, release: Release, hands_off: float) -> OpenRelease:
        """Put a release on the books in place of the lease; called under the lock."""
        now = self.clock()
        open_release = OpenRelease(release, kept.store, until=now + kept.lease.ttl, due=now + hands_off)
        self._books[kept.lease.token] = open_release
        kept.lease.end()
        return open_release

    def _give_up(self, kept: Kept) -> OpenRelease | None:
        """Part with a lease whose owner is gone; None if it was given back this very moment."""
        release = release_of(kept.lease, Outcome.REQUEUED, began=kept.lease.began)
        with self._lock:
            if self._books.get(kept.lease.token) is not kept:
                return None
            open_release = self._part(kept, release, hands_off=0)
        self._telling.tell(kept, Kind.RELEASED, str(Outcome.REQUEUED))
        return open_release


class _Process:
    """The one piece of global state: this process's keeper, which has no thread before its first lease."""

    keeper = Keeper()


def process_keeper() -> Keeper:
    """Return this process's keeper; a forked child has its own, also where nothing is called after a fork."""
    keeper = _Process.keeper
    if not keeper.is_ours:
        keeper = _Process.keeper = Keeper()
    return keeper
