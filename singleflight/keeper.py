"""The keeper: one thread per process that renews every lease this process holds, and gives back late ones."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from singleflight.decisions import renewal_interval
from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.events import Event, Kind, logger
from singleflight.keys import short_key
from singleflight.lease import Outcome, monotonic
from singleflight.stores.base import Release, Renewal, Renewed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from singleflight.events import Notify
    from singleflight.lease import Lease
    from singleflight.stores.base import Store

RETRY = 0.5
"""Seconds between two tries at a store that did not answer."""

IDLE = 5.0
"""Seconds after which a keeper without work looks up: so a lease that is due later need not wake it."""

BATCH = 1 / 10
"""Leases that fall due within this part of their renewal interval are renewed in the same request."""

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class _Kept:
    """One lease in hand, and whom to tell."""

    lease: Lease
    store: Store
    notify: Notify
    on_lost: Callable[[Lease], None] | None
    owner: Callable[[], object] | None
    due: float
    """When the next renewal goes out (monotonic)."""
    confirmed: float
    """When the last request that the store granted went out (monotonic)."""
    told: bool = False
    """The holder knows that the lease cannot be trusted."""


@dataclass(slots=True, eq=False)
class _Parting:
    """A release that is not through yet; after ``until`` (monotonic) the lease has lapsed by itself."""

    release: Release
    store: Store
    until: float
    unless_over: bool = False
    """Look first, and leave a lease alone whose own process has already said how the run ended."""


class Keeper:
    """Renews leases every ttl/3, in one request per store, and tells holders when they have lost one.

    The thread starts with the first lease and survives every store error. A forked child never touches
    its parent's keeper: leases of another process are neither renewed nor released.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self.pid = os.getpid()
        self._wake = threading.Condition()
        self._kept: dict[str, _Kept] = {}
        self._partings: list[_Parting] = []
        self._next_look = 0.0
        self._stopping = False
        self._thread: threading.Thread | None = None

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

        ``on_lost`` is called in the keeper's thread when the lease cannot be trusted any more. ``owner`` is
        a weak reference to whoever must release: when it is dead, the keeper releases as REQUEUED.
        """
        due = lease.held_since + renewal_interval(lease.ttl)
        with self._wake:
            self._kept[lease.token] = _Kept(lease, store, notify, on_lost, owner, due, lease.held_since)
            self._ensure_thread(due)

    def renew_now(self, lease: Lease) -> None:
        """Renew one lease in the calling thread; a store that is away changes nothing."""
        if self.pid == os.getpid():
            with self._wake:
                kept = self._kept.get(lease.token)
            if kept is not None:
                self._renew([kept])

    def give_back(self, lease: Lease, outcome: Outcome, *, grace: float = 0, again: float = 0) -> bool:
        """Stop renewing and release; if the store is away, the thread goes on trying until the ttl is over.

        The release is on the books before the request goes out, so that an exception raised into the
        calling thread (a soft time limit) cannot lose it.
        """
        if self.pid != os.getpid():
            return False
        with self._wake:
            kept = self._kept.get(lease.token)
            if kept is None:
                return False
            parting = _Parting(_release(lease, outcome, grace, again), kept.store, monotonic() + lease.ttl)
            self._partings.append(parting)
            del self._kept[lease.token]
        lease.end()
        ours = self._part(parting)
        kept.notify(_event(Kind.RELEASED, lease, str(outcome)))
        return bool(ours)

    def send(self, release: Release, store: Store, *, patience: float) -> None:
        """Release for a process that could not, from the keeper's thread: the caller must not wait.

        Nothing happens if that process never held the lease, or has said itself how the run ended: it may
        have published a retry or a deferred copy, which a final outcome would turn into a late copy.
        """
        with self._wake:
            parting = _Parting(release, store, monotonic() + patience, unless_over=True)
            self._partings.append(parting)
            self._ensure_thread(0.0)

    def stop(self, patience: float = 1.0) -> None:
        """Try open releases once more and end the thread within ``patience`` seconds."""
        if self.pid != os.getpid():
            return
        with self._wake:
            thread, self._thread, self._stopping = self._thread, None, True
            self._wake.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)

    def _ensure_thread(self, look_by: float) -> None:
        """Have the thread look at the books by ``look_by`` (monotonic); called under the lock."""
        if self._thread is None or not self._thread.is_alive():
            self._stopping = False
            self._thread = threading.Thread(target=self._run, name="singleflight-keeper", daemon=True)
            self._thread.start()
            atexit.register(self.stop)
        elif look_by < self._next_look:
            self._wake.notify()

    def _run(self) -> None:
        while True:
            try:
                with self._wake:
                    if not self._stopping:
                        self._next_look = self._next_moment()
                        self._wake.wait(max(0.0, self._next_look - monotonic()))
                    kept, stopping = list(self._kept.values()), self._stopping
                self._part_all()
                if stopping:
                    return
                self._beat(kept)
            except Exception:  # whatever it was, the other leases still need their keeper
                logger.exception("singleflight keeper: going on after an unexpected error")
                time.sleep(RETRY)

    def _next_moment(self) -> float:
        """When there is something to do next (monotonic); called under the lock."""
        moment = monotonic() + (RETRY if self._partings else IDLE)
        for kept in self._kept.values():
            moment = min(moment, kept.due if kept.told else min(kept.due, kept.lease.trusted_until))
        return moment

    def _beat(self, everything: Sequence[_Kept]) -> None:
        """Renew what is due, then tell the holders of what could not be confirmed in time."""
        now = monotonic()
        due: dict[int, list[_Kept]] = defaultdict(list)
        for kept in everything:
            lease = kept.lease
            if kept.owner is not None and kept.owner() is None:
                lease.release(Outcome.REQUEUED)
            elif kept.due <= now + BATCH * renewal_interval(lease.ttl):
                if lease.max_hold is not None and now - lease.held_since >= lease.max_hold:
                    kept.due = NEVER  # a hung run: the lease lapses by itself
                else:
                    due[id(kept.store)].append(kept)
        for group in due.values():
            self._renew(group)
        now = monotonic()
        for kept in everything:
            if not kept.told and now >= kept.lease.trusted_until and kept.lease.token in self._kept:
                self._lose(kept, "max_hold is over" if kept.due == NEVER else "not confirmed in time")

    def _renew(self, group: Sequence[_Kept]) -> None:
        """Renew leases of one store in one request."""
        sent = monotonic()
        try:
            answers = group[0].store.renew([_renewal(kept, sent) for kept in group])
        except (StoreUnavailable, ConfigurationError) as error:
            for kept in group:
                kept.due = monotonic() + min(RETRY, renewal_interval(kept.lease.ttl))
            group[0].notify(_event(Kind.STORE_ERROR, group[0].lease, f"{len(group)} not renewed: {error}"))
            return
        for kept, answer in zip(group, answers, strict=True):
            if answer is Renewed.LOST:
                kept.due = NEVER
                if kept.lease.end() and not kept.told:
                    self._lose(kept, "another delivery has it, or it was evicted")
                continue
            kept.due, kept.confirmed = sent + renewal_interval(kept.lease.ttl), sent
            kept.lease.renewed(sent)
            if answer is Renewed.RESTORED:
                kept.notify(_event(Kind.RESTORED, kept.lease, "the record had vanished from the store"))
            if kept.told:
                kept.told = False
                kept.notify(_event(Kind.REGAINED, kept.lease, "nobody else took it"))

    def _lose(self, kept: _Kept, why: str) -> None:
        kept.told = True
        kept.notify(_event(Kind.LOST, kept.lease, why))
        if kept.on_lost is not None:
            kept.on_lost(kept.lease)

    def _part_all(self) -> None:
        """Try every open release once, but wait for a store that is away only once."""
        with self._wake:
            partings = list(self._partings)
        away: set[int] = set()
        for parting in partings:
            if id(parting.store) not in away and self._part(parting) is None:
                away.add(id(parting.store))

    def _part(self, parting: _Parting) -> bool | None:
        """Try one release: was the lease ours? None if the store is away."""
        ours = False
        try:
            if monotonic() < parting.until and not (parting.unless_over and _is_over(parting)):
                ours = parting.store.release(parting.release)
        except StoreUnavailable:
            return None
        except ConfigurationError as error:
            # Permanent, so there is no second try: the lease ends by its ttl.
            logger.warning("singleflight: %s not released: %s", short_key(parting.release.key), error)
        with self._wake:
            if parting in self._partings:  # another thread may have been quicker
                self._partings.remove(parting)
        return ours


class _Process:
    """The one piece of global state: this process's keeper."""

    keeper: Keeper | None = None


def process_keeper() -> Keeper:
    """Return this process's keeper, a new one after a fork."""
    if _Process.keeper is None or _Process.keeper.pid != os.getpid():
        _Process.keeper = Keeper()
    return _Process.keeper


def _is_over(parting: _Parting) -> bool:
    look = parting.store.peek(parting.release.key)
    return (
        look is None
        or look.record.token != parting.release.token
        or look.record.outcome not in ("", Outcome.REQUEUED)
    )


def _renewal(kept: _Kept, now: float) -> Renewal:
    lease = kept.lease
    return Renewal(
        key=lease.key,
        run_id=lease.run_id,
        attempt=lease.attempt,
        token=lease.token,
        fence=lease.fence,
        ttl_ms=round(lease.ttl * 1000),
        started_ms=lease.granted.started_ms,
        opens_ms=lease.granted.opens_ms,
        age_ms=round((now - kept.confirmed) * 1000),
        holder=lease.holder.encode(),
    )


def _release(lease: Lease, outcome: Outcome, grace: float, again: float) -> Release:
    return Release(
        key=lease.key,
        run_id=lease.run_id,
        attempt=lease.attempt,
        token=lease.token,
        outcome=outcome,
        grace_ms=round(grace * 1000),
        again_ms=round(again * 1000),
        began=lease.began,
    )


def _event(kind: Kind, lease: Lease, reason: str) -> Event:
    return Event(
        kind=kind,
        task=lease.task,
        key=short_key(lease.key),
        run_id=lease.run_id,
        token=lease.token,
        fence=lease.fence,
        reason=reason,
        age=monotonic() - lease.held_since,
    )
