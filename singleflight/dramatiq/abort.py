"""``on_lost="abort"``: raise `LeaseLost` in the thread of a body, as Dramatiq raises a time limit."""

from __future__ import annotations

from dramatiq.middleware import raise_thread_exception

from singleflight.dramatiq.errors import LeaseLost
from singleflight.leases import abort


class Abort(abort.Abort):
    """An `Abort` whose exception Dramatiq takes for one of its own interrupts, in greenlets too."""

    error = LeaseLost

    def strike(self) -> None:
        """See `singleflight.leases.abort.Abort.strike`."""
        raise_thread_exception(self.thread, self.error)  # type: ignore[no-untyped-call]
