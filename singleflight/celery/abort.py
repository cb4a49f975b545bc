"""``on_lost="abort"``: raise `LeaseLost` in the thread that runs the body, as a soft time limit is raised.

In the main thread (prefork children, the solo pool) a signal interrupts even a blocking system call; it is
SIGUSR1, Celery's own for soft time limits, whose handler is kept for everybody else. In the threads of the
threads pool an asynchronous exception is set, which Python raises at the next bytecode: a thread that
blocks in C sees it only afterwards. Greenlets are not interrupted; there the lease's `held` is the word.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from typing import TYPE_CHECKING, Any

from singleflight.errors import LeaseLost
from singleflight.plain import current_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from singleflight.lease import Lease


class _Handler:
    """This process's SIGUSR1 handler: ours for a lost lease, the one before for everything else."""

    def __init__(self) -> None:
        self.lost: Lease | None = None
        self.before: Any = signal.getsignal(signal.SIGUSR1)

    def __call__(self, number: int, frame: Any) -> None:
        lost, self.lost = self.lost, None
        if lost is not None:
            if lost is current_lease():
                raise _error(lost)
        elif callable(self.before):
            self.before(number, frame)


def current_thread() -> Callable[[Lease], None]:
    """Return what the keeper calls to abort the body that is about to run in this thread."""
    if threading.current_thread() is not threading.main_thread():
        ident = threading.get_ident()
        return lambda _lease: _set_exception(ident, LeaseLost)
    handler = signal.getsignal(signal.SIGUSR1)
    if not isinstance(handler, _Handler):
        handler = _Handler()
        signal.signal(signal.SIGUSR1, handler)
    ours, main = handler, threading.main_thread().ident

    def abort(lease: Lease) -> None:
        ours.lost = lease
        if main is not None:
            signal.pthread_kill(main, signal.SIGUSR1)

    return abort


@contextlib.contextmanager
def armed() -> Iterator[None]:
    """Surround a body: an abort that comes too late must not strike what runs after it."""
    try:
        yield
    finally:
        if threading.current_thread() is not threading.main_thread():
            _set_exception(threading.get_ident(), None)


def _set_exception(ident: int, error: type[BaseException] | None) -> None:
    target = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), target)


def _error(lease: Lease) -> LeaseLost:
    return LeaseLost(f"{lease.task}: run {lease.run_id} lost its lease (fence {lease.fence}) and was stopped")
