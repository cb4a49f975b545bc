"""A release that is not through yet: tried again until the lease has lapsed by itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.events import Subject, short_key
from singleflight.lease import Outcome
from singleflight.log import logger
from singleflight.options import LONGEST
from singleflight.stores.base import Release
from singleflight.stores.view import View

if TYPE_CHECKING:
    from singleflight.stores.base import Store


class Claimed(Subject, Protocol):
    """What can be released: a lease, or the request for one."""

    @property
    def attempt(self) -> int:
        """The number of the try."""
        ...


def release_of(
    subject: Claimed, outcome: Outcome, *, grace: float = 0, again: float = 0, began: bool = True
) -> Release:
    """Return the release of a lease, or of what a request may have been granted; durations in seconds."""
    return Release(
        key=subject.key,
        run_id=subject.run_id,
        attempt=subject.attempt,
        token=subject.token,
        outcome=outcome,
        grace_ms=round(grace * 1000),
        # A retry may be planned for whenever its author likes; no store keeps a place for longer.
        again_ms=round(min(again, LONGEST) * 1000),
        began=began,
    )


@dataclass(slots=True, eq=False)
class OpenRelease:
    """One release, and how long it is worth trying; moments are on the keeper's clock."""

    release: Release
    store: Store
    until: float
    """When the lease has lapsed by itself."""
    due: float
    """When the keeper's thread tries; until then, it is left to the thread that gives the lease back."""
    tried: float = 0.0
    """When the keeper's thread has tried last."""
    unless_over: bool = False
    """Look first, and leave a lease alone whose own process has already said how the run ended."""

    def attempt(self, now: float) -> bool | None:
        """Try once: was the lease ours? None if the store gave no answer, so that another try is due."""
        if now >= self.until:
            self._warn("the store did not answer until the ttl was over")
            return False
        try:
            return not (self.unless_over and self._is_over()) and self.store.release(self.release)
        except StoreUnavailable:
            return None
        except ConfigurationError as error:
            self._warn(error)  # permanent, so there is no second try
            return False

    def _warn(self, why: object) -> None:
        # A run that comes back has nothing to record: its lease lapses, and that is all.
        release = self.release
        logger.log(
            logging.DEBUG if release.outcome is Outcome.REQUEUED else logging.WARNING,
            "singleflight: run %s of %s could not be recorded as %s; its lease ends by its ttl: %s",
            release.run_id, short_key(release.key), release.outcome, why,
        )  # fmt: skip

    def _is_over(self) -> bool:
        return not View(self.store.peek(self.release.key)).is_open(self.release.token)
