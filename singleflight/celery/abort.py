"""How ``on_lost="abort"`` reaches a body in each of Celery's pools.

In the main thread (prefork children, the solo pool) a signal interrupts even a blocking system call; it is
SIGUSR1, Celery's own for soft time limits, whose handler is kept for everybody else. In the threads of the
threads pool it is an asynchronous exception. Greenlets are not interrupted; there the lease's `held` is the
word.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded

from singleflight.leases import abort
from singleflight.log import STRIKES

STRIKES.append(SoftTimeLimitExceeded)  # it may strike in a listener, and must end the task all the same


class Abort(abort.Abort):
    """An `Abort` that interrupts a body in the main thread by a signal."""

    def __init__(self) -> None:
        """Note the thread, and see to the signal's handler."""
        super().__init__()
        self._handler = _handler() if threading.current_thread() is threading.main_thread() else None

    def strike(self) -> None:
        """See `singleflight.leases.abort.Abort.strike`."""
        if self._handler is None:
            super().strike()
        else:
            self._handler.abort = self
            signal.pthread_kill(self.thread, signal.SIGUSR1)

    def forget(self) -> None:
        """See `singleflight.leases.abort.Abort.forget`; the handler looks whether the body still runs."""
        if self._handler is None:
            super().forget()


class _Handler:
    """This process's SIGUSR1 handler: ours for a lost lease, the one before for everything else."""

    def __init__(self) -> None:
        self.abort: Abort | None = None
        self.before: Any = signal.getsignal(signal.SIGUSR1)

    def __call__(self, number: int, frame: Any) -> None:
        striking, self.abort = self.abort, None
        if striking is None:
            if callable(self.before):
                self.before(number, frame)
        elif striking.is_armed:
            raise striking.error


def _handler() -> _Handler:
    handler = signal.getsignal(signal.SIGUSR1)
    if not isinstance(handler, _Handler):
        handler = _Handler()
        signal.signal(signal.SIGUSR1, handler)
    return handler
