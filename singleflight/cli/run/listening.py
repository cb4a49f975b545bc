"""Waiting to be told that a lease is free, while the main thread waits for signals."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from singleflight.errors import SingleflightError
from singleflight.stores.optional import Waking

if TYPE_CHECKING:
    from singleflight.cli.run.signals import Signals
    from singleflight.leases.claiming import Request
    from singleflight.stores.base import Store


class Turns:
    """A place in the line for a lease, where the store keeps one."""

    def __init__(self, store: Store, request: Request, signals: Signals) -> None:
        self._store = store if isinstance(store, Waking) else None
        self._request, self._signals = request, signals

    @property
    def told(self) -> bool:
        """Whether the store tells those who wait; False from its first failure to do so."""
        return self._store is not None

    def listen(self, seconds: float) -> threading.Event:
        """Have an event set, and `Signals.wait` end, when it is worth asking again: then at the latest."""
        news = threading.Event()
        threading.Thread(target=self._listen, args=(news, seconds), daemon=True).start()
        return news

    def _listen(self, news: threading.Event, seconds: float) -> None:
        try:
            if self._store is not None:
                self._store.await_turn(self._request.key, self._request.run_id, seconds=seconds)
        except SingleflightError:  # a right that is missing, or an outage, which asking will show as well
            self._store = None
        news.set()
        self._signals.rouse()
