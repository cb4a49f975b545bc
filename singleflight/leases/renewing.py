"""One lease in the keeper's hands: when it is renewed, and whom to tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from singleflight.events import Kind, about
from singleflight.lease import renewal_interval
from singleflight.stores.base import Renewal

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.events import Notify
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
        self.confirmed = sent
        self.due = sent + renewal_interval(self.lease.ttl)

    def is_due(self, now: float) -> bool:
        """Say whether to renew; a run that hangs is not renewed again, so that its lease lapses."""
        lease = self.lease
        if lease.max_hold is not None and now - lease.held_since >= lease.max_hold:
            self.due = NEVER
        return self.due <= now + BATCH * renewal_interval(lease.ttl)

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

    def tell(self, kind: Kind, reason: str, now: float) -> None:
        """Report what happened to the lease."""
        lease = self.lease
        if self.notify.heeds(kind):
            self.notify(about(lease, kind, reason, fence=lease.fence, age=now - lease.held_since))
