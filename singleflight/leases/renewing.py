"""One lease in the keeper's hands: when it is renewed, and whom to tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from singleflight.events import about
from singleflight.lease import renewal_interval
from singleflight.stores.base import Renewal

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.events import Event, Kind, Notify
    from singleflight.lease import Lease
    from singleflight.stores.base import Store

BATCH = 1 / 10
"""A lease that falls due within this part of its renewal interval is renewed with those that are due."""

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Kept:
    """A lease, its store, and those who want to know; moments are on the keeper's clock."""

    lease: Lease
    store: Store
    notify: Notify
    on_lost: Callable[[Lease], None] | None
    owner: Callable[[], object] | None
    due: float = field(init=False)
    """When the next renewal goes out."""
    confirmed: float = field(init=False)
    """When the last request that the store granted went out."""
    unanswered: bool = False
    """The last request to renew it got no answer."""
    told: bool = False
    """The holder knows that the lease cannot be trusted."""

    def __post_init__(self) -> None:
        self.confirm(self.lease.held_since)

    @property
    def abandoned(self) -> bool:
        """True if whoever must release is gone."""
        return self.owner is not None and self.owner() is None

    def confirm(self, sent: float) -> None:
        """Note that the store granted a request that went out at ``sent``."""
        self.confirmed, self.unanswered = sent, False
        self.due = sent + renewal_interval(self.lease.ttl)

    def is_renewed(self, now: float) -> bool:
        """Say whether it is renewed at all: a run that hangs beyond ``max_hold`` is not, so it lapses."""
        lease = self.lease
        if lease.max_hold is not None and now - lease.held_since >= lease.max_hold:
            self.due = NEVER
        return self.due != NEVER

    def is_due(self, now: float) -> bool:
        """Say whether to renew it now, because it is due or nearly so."""
        early = 0.0 if self.unanswered else BATCH * renewal_interval(self.lease.ttl)
        return self.is_renewed(now) and self.due <= now + early

    def renewal(self, now: float) -> Renewal:
        """Return what to ask the store."""
        lease = self.lease
        return Renewal(
            key=lease.key,
            run_id=lease.run_id,
            attempt=lease.attempt,
            token=lease.token,
            fence=lease.fence,
            ttl_ms=round(lease.ttl * 1000),
            started_ms=lease.granted.started_ms,
            opens_ms=lease.granted.opens_ms,
            age_ms=round((now - self.confirmed) * 1000),
            holder=lease.holder.encode(),
        )

    def event(self, kind: Kind, reason: str, now: float) -> Event:
        """Return what there is to tell of the lease."""
        lease = self.lease
        return about(lease, kind, reason, fence=lease.fence, age=now - lease.held_since)

    def tell(self, kind: Kind, reason: str, now: float) -> None:
        """Tell the listeners in the calling thread."""
        if self.notify.heeds(kind):
            self.notify(self.event(kind, reason, now))
