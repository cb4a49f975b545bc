"""Telling holders and listeners what happened to a lease, where it delays no renewal."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from singleflight.events import short_key
from singleflight.leases.lanes import Lanes
from singleflight.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from singleflight.events import Kind
    from singleflight.leases.renewing import Kept

MOST = 64
"""How many holders and listeners may be busy with what they were told before others have to wait."""


class Telling:
    """Calls what users have given us, in threads of its own, for it may take its time, fail or hang."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._threads = Lanes("singleflight-telling", most=MOST)

    def lost(self, kept: Kept) -> None:
        """Tell a holder; one that never waits (``at_once``) hears it here, whatever the others do."""
        if kept.on_lost is None:
            return
        if getattr(kept.on_lost, "at_once", False):
            _tell_holder(kept)
        else:
            self._put(kept, partial(_tell_holder, kept))

    def tell(self, kept: Kept, kind: Kind, reason: str) -> None:
        """Tell the listeners, in order."""
        if kept.notify.heeds(kind):
            self._put(kept.notify, partial(kept.notify, kept.event(kind, reason, self._clock())))

    def stop(self, timeout: float) -> None:
        """Wait until all are told, at most ``timeout`` seconds."""
        self._threads.stop(timeout)

    def _put(self, lane: Hashable, work: Callable[[], object]) -> None:
        try:
            self._threads.put(lane, work)
        except RuntimeError:  # Python is shutting down and starts no thread any more
            work()


def _tell_holder(kept: Kept) -> None:
    try:
        if kept.on_lost is not None:
            kept.on_lost(kept.lease)
    except Exception:  # noqa: BLE001 - the other holders want to know as well
        logger.exception("singleflight: on_lost failed for %s", short_key(kept.lease.key))
