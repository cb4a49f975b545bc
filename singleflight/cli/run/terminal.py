"""The controlling terminal and whose group is in its foreground, as a shell sees it."""

from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import suppress


class Terminal:
    """A terminal that this process may share with the command it starts."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls) -> Terminal | None:
        """Return the controlling terminal, or None if there is none (cron, containers)."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR))
        except OSError:
            return None

    @property
    def ours(self) -> bool:
        """Whether this process's group is in the foreground."""
        return self._foreground() == os.getpgrp()

    def has(self, group: int) -> bool:
        """Whether another group is in the foreground."""
        return self._foreground() == group

    def give(self, group: int) -> None:
        """Put a group into the foreground, from wherever this process is."""
        # A background process that does this is stopped by TTOU, unless it blocks it; ignoring it instead
        # would be inherited by the command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with suppress(OSError):  # the group has ended, or the terminal is gone
                os.tcsetpgrp(self._descriptor, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def take_back(self) -> None:
        """Put this process's group into the foreground."""
        self.give(os.getpgrp())

    def _foreground(self) -> int:
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:
            return -1


def interactive() -> bool:
    """Whether the command may have the foreground for itself: a pipe's other end may need it, a pager."""
    try:
        kinds = [os.fstat(descriptor).st_mode for descriptor in (1, 2)]
    except OSError:
        return False
    return sys.stdin is not None and os.isatty(0) and not any(map(stat.S_ISFIFO, kinds))
