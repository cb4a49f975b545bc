"""``on_lost="abort"``: raise `LeaseLost` in the thread that runs a body, and only while it runs."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import TYPE_CHECKING, ClassVar

from singleflight.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.lease import Lease


class Abort:
    """What the keeper calls to end the body that is about to run in the thread that makes this.

    An asynchronous exception is set, which Python raises at the thread's next bytecode: a thread that blocks
    in C sees it only afterwards.
    """

    error: ClassVar[type[LeaseLost]] = LeaseLost
    at_once: ClassVar[bool] = True
    """It never waits, so the keeper need not have it called in another thread, behind others."""

    def __init__(self) -> None:
        """Note the thread; nothing is raised in it before `armed`, nor afterwards."""
        self.thread = threading.get_ident()
        self._lock = threading.Lock()
        self._armed = False
        self._raised = False

    @property
    def is_armed(self) -> bool:
        """Whether the body runs."""
        return self._armed

    def __call__(self, _lease: Lease) -> None:
        """Raise `error` in the body, once."""
        with self._lock:
            if self._armed and not self._raised:
                self._raised = True
                self.strike()

    @contextlib.contextmanager
    def armed(self, lease: Lease) -> Iterator[None]:
        """Surround a body: an abort that comes too late must not strike what runs after it.

        Raises:
            LeaseLost: if the lease is or gets lost.
        """
        lost = self.error(f"{lease.task}: run {lease.run_id} lost its lease (fence {lease.fence}), stopped")
        try:
            self._arm(armed=True)
            if not lease.held:
                raise lost
            yield
        except self.error as error:
            raise error if error.args else lost from None
        finally:
            self._arm(armed=False)

    def strike(self) -> None:
        """Have the exception raised in the thread."""
        set_exception(self.thread, self.error)

    def forget(self) -> None:
        """Take back an exception that has not been raised yet."""
        set_exception(self.thread, None)

    def _arm(self, *, armed: bool) -> None:
        with self._lock:
            self._armed = armed
            if not armed and self._raised:
                self.forget()


def set_exception(thread: int, error: type[BaseException] | None) -> None:
    """Set a thread's asynchronous exception, or none."""
    target = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)
