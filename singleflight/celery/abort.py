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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.lease import Lease


class Abort:
    """What the keeper calls to end the body that is about to run in the thread that makes this."""

    def __init__(self) -> None:
        """Note the thread; nothing is raised in it before `armed`, nor afterwards."""
        self._thread = threading.get_ident()
        self._handler = _handler() if threading.current_thread() is threading.main_thread() else None
        self._lock = threading.Lock()
        self._armed = False
        self._raised = False

    @property
    def is_armed(self) -> bool:
        """Whether the body runs."""
        return self._armed

    def __call__(self, _lease: Lease) -> None:
        """Raise `LeaseLost` in the body, once."""
        with self._lock:
            if self._raised or not self._armed:
                return
            self._raised = True
            if self._handler is None:
                _set_exception(self._thread, LeaseLost)
            else:
                self._handler.abort = self
                signal.pthread_kill(self._thread, signal.SIGUSR1)

    @contextlib.contextmanager
    def armed(self, lease: Lease) -> Iterator[None]:
        """Surround a body: an abort that comes too late must not strike what runs after it.

        Raises:
            LeaseLost: if the lease is or gets lost.
        """
        lost = LeaseLost(
            f"{lease.task}: run {lease.run_id} lost its lease (fence {lease.fence}) and was stopped"
        )
        try:
            self._arm(armed=True)
            if not lease.held:
                raise lost
            yield
        except LeaseLost as error:
            raise error if error.args else lost from None
        finally:
            self._arm(armed=False)

    def _arm(self, *, armed: bool) -> None:
        # The main thread takes no lock that its own signal handler could find taken: there Python runs
        # handlers between two bytecodes, and `_armed` is looked at there again.
        if self._handler is not None:
            self._armed = armed
            return
        with self._lock:
            self._armed = armed
            if not armed and self._raised:
                _set_exception(self._thread, None)


class _Handler:
    """This process's SIGUSR1 handler: ours for a lost lease, the one before for everything else."""

    def __init__(self) -> None:
        self.abort: Abort | None = None
        self.before: Any = signal.getsignal(signal.SIGUSR1)

    def __call__(self, number: int, frame: Any) -> None:
        abort, self.abort = self.abort, None
        if abort is not None:
            if abort.is_armed:
                raise LeaseLost
        elif callable(self.before):
            self.before(number, frame)


def _handler() -> _Handler:
    handler = signal.getsignal(signal.SIGUSR1)
    if not isinstance(handler, _Handler):
        handler = _Handler()
        signal.signal(signal.SIGUSR1, handler)
    return handler


def _set_exception(ident: int, error: type[BaseException] | None) -> None:
    target = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), target)
