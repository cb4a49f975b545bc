"""A daemon thread that looks when it is time, for the keeper."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from typing import TYPE_CHECKING

from singleflight.errors import ConfigurationError
from singleflight.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

RETRY = 0.5
"""Seconds between two tries at something that has failed."""

IDLE = 5.0
"""Seconds after which a thread without work looks up: a wait stands still while the machine sleeps."""


class Timer:
    """Calls ``look`` in a thread of its own; ``look`` returns the moment of its next call.

    Nothing here is a `threading.Condition` or `threading.Event`: an exception that is raised into a thread
    (a soft time limit) inside their Python code leaves them locked for ever. A bare lock in a ``with``
    statement is taken and given back without such a gap.

    Args:
        name: the thread's name.
        look: what to call; whatever it raises is logged, and the thread goes on.
        clock: seconds; what moments are on.
    """

    def __init__(self, name: str, look: Callable[[], float], clock: Callable[[], float]) -> None:
        self._name = name
        self._look = look
        self._clock = clock
        self._lock = threading.RLock()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._next = math.inf
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """See to it that there is a thread.

        Raises:
            ConfigurationError: if Python is shutting down and starts none any more.
        """
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                _warn_of_greenlets()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:
                    self._thread = None
                    raise ConfigurationError(
                        f"no thread can be started to renew leases ({error}): take the first lease before "
                        "the main thread ends, or have the main thread wait for those that need leases"
                    ) from error

    @property
    def started(self) -> bool:
        """Whether a thread was started, and not stopped since."""
        return self._thread is not None

    def rouse(self, by: float) -> None:
        """Have ``look`` called by a moment on the clock, in a new thread if there is none."""
        self.start()
        self.ring(by)

    def ring(self, by: float) -> None:
        """Have ``look`` called by a moment on the clock, if there is a thread."""
        if by < self._next:
            self._ring()

    def stop(self, timeout: float) -> None:
        """Have ``look`` called once more, and wait at most ``timeout`` seconds for the thread to end."""
        with self._lock:
            thread, self._thread = self._thread, None
        self._ring()
        if thread is not None and thread.ident and thread is not threading.current_thread():
            thread.join(timeout)

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._bell.release()

    def _run(self) -> None:
        while True:
            # Read before looking, so that one look comes after `stop`; another thread may have followed.
            over = self._thread is not threading.current_thread()
            # An idle thread looks up before a usual lease is first due, so that no task has to wake it; not
            # during a look either, or with many leases each look would end with news and lead to the next.
            idle = self._clock() + IDLE
            self._next = idle  # from here on, whoever has news of an earlier moment rings
            try:
                moment = self._look()
            except BaseException:  # noqa: BLE001 - whatever it was, the other leases still need their keeper
                logger.exception("singleflight: %s goes on after an unexpected error", self._name)
                moment = self._clock() + RETRY
            if over:
                return
            self._next = min(moment, idle)
            self._bell.acquire(timeout=max(self._next - self._clock(), 0))


class _Warned:
    greenlets = False


def _warn_of_greenlets() -> None:
    """Say once that threads are greenlets here: nothing is renewed while one of them blocks the rest."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    patched = (gevent is not None and gevent.is_module_patched("threading")) or (
        eventlet is not None and eventlet.is_monkey_patched("thread")
    )
    if patched and not _Warned.greenlets:
        _Warned.greenlets = True
        logger.warning(
            "singleflight: threads are greenlets in this process, so leases are renewed only while tasks "
            "yield: one that computes, or calls C code, for longer than its ttl can lose its lease. Give "
            "such tasks a longer ttl, or run them in a prefork or threads pool"
        )
