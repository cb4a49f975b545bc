"""Signals as things to wait for, in the main thread, along with time and other threads' news."""

from __future__ import annotations

import os
import resource
import select
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType
    from typing import Self

STOP = signal.SIGTSTP
ENDING = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
        *(range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()),
    }
)
"""What ends a program that does not handle it, and is not the program's own fault."""

FORWARDED = ENDING | {signal.SIGWINCH, signal.SIGCONT, STOP}
"""What is meant for the command; KILL and STOP cannot be caught, the rest is about this process."""


class Signals:
    """Catches signals from ``with`` to its end; those that were ignored before stay ignored (nohup)."""

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _note)
        # Also where it was ignored: a parent that ignores it is never told how its child ended.
        signal.signal(signal.SIGCHLD, _note)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the handlers in place: from here on, the program only ends."""
        signal.set_wakeup_fd(-1)
        write, self._write = self._write, -1  # a thread that is late must not write to what is opened next
        os.close(self._read)
        os.close(write)

    def wait(self, seconds: float) -> list[int]:
        """Wait until signals arrive, somebody calls `rouse`, or time is over; return the signals."""
        if not select.select([self._read], [], [], max(0.0, min(seconds, 3600.0)))[0]:
            return []
        return [number for number in os.read(self._read, 4096) if number]

    def rouse(self) -> None:
        """End a `wait`, from any thread."""
        with suppress(OSError):  # full: it ends anyway; closed: nobody waits
            os.write(self._write, b"\0")


def stop_self() -> None:
    """Stop this process as Ctrl-Z does; return when it goes on, at once if no shell could continue it."""
    signal.signal(STOP, signal.SIG_DFL)
    # To this very thread, because another one would stop the process some instants later.
    signal.pthread_kill(threading.get_ident(), STOP)
    signal.signal(STOP, _note)


def end_by(number: int) -> None:
    """End this process by a signal, without a core file; returns where that cannot be (as PID 1)."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Let Python write the number to the pipe."""
