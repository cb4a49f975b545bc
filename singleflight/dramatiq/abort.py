"""``on_lost="abort"``: raise `LeaseLost` in the thread that runs the body, as Dramatiq raises a time limit.

Python raises it at the thread's next bytecode: a thread that blocks in C sees it only afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import TYPE_CHECKING

from dramatiq.middleware import raise_thread_exception

from singleflight.dramatiq.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.lease import Lease


class Abort:
    """What the keeper calls to end the body that is about to run in the thread that makes this."""

    def __init__(self) -> None:
        """Note the thread; nothing is raised in it before `armed`, nor afterwards."""
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._armed = False
        self._raised = False

    def __call__(self, _lease: Lease) -> None:
        """Raise `LeaseLost` in the body, once."""
        with self._lock:
            if self._armed and not self._raised:
                self._raised = True
                raise_thread_exception(self._thread, LeaseLost)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def armed(self, lease: Lease) -> Iterator[None]:
        """Surround a body: an abort that comes too late must not strike what runs after it.

        Raises:
            LeaseLost: if the lease is or gets lost.
        """
        lost = LeaseLost(f"{lease.task}: run {lease.run_id} lost its lease (fence {lease.fence}), stopped")
        try:
            with self._lock:
                self._armed = True
            if not lease.held:
                raise lost
            yield
        except LeaseLost as error:
            raise error if error.args else lost from None
        finally:
            with self._lock:
                self._armed = False
                if self._raised:
                    _forget(self._thread)


def _forget(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
