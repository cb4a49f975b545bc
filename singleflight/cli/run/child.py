"""The command that a lease protects: started in a group of its own, watched, signalled, reaped."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from singleflight.cli.address import secrets_in
from singleflight.cli.run.terminal import interactive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from singleflight.cli.run.terminal import Terminal

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1


class Child:
    """A running command and its process group.

    Raises:
        OSError: when made, if the command cannot be executed; `FileNotFoundError` if there is none.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[bytes, bytes], terminal: Terminal | None) -> None:
        hands_over = terminal if terminal is not None and terminal.ours and interactive() else None
        try:
            # Descriptors beyond the first three pass through too: Python's own are not inheritable.
            self._process = subprocess.Popen(  # noqa: S603 - running what the user wrote is the purpose
                argv,
                env=env,
                close_fds=False,
                process_group=0,
                preexec_fn=_first_thing(hands_over),  # noqa: PLW1509 - it makes system calls and nothing else
            )
        except OSError:
            if hands_over is not None:
                hands_over.take_back()
            raise
        self.group = self._process.pid
        self.code: int | None = None
        """The exit code, negative for a signal; None while it runs."""

    def look(self) -> int | None:
        """Collect who has ended, orphans too (as PID 1 must); return the signal that stopped the command."""
        stopped = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return stopped
            if pid == 0:
                return stopped
            if pid != self.group:
                continue
            if os.WIFSTOPPED(status):
                stopped = os.WSTOPSIG(status)
            else:
                self.code = self._process.returncode = os.waitstatus_to_exitcode(status)

    def send(self, number: int) -> None:
        """Send a signal to the command and all of its group."""
        with suppress(ProcessLookupError, PermissionError):  # gone, or set-uid: nothing more can be done
            os.killpg(self.group, number)


def environment(key: str, fence: int) -> dict[bytes, bytes]:
    """Return this process's environment plus the lease, minus a store's password, for the command."""
    env = dict(os.environb)
    if secrets_in(os.environ.get("SINGLEFLIGHT_URL", "")):
        del env[b"SINGLEFLIGHT_URL"]
    if _added_by_python(b"LC_CTYPE"):
        del env[b"LC_CTYPE"]
    return {**env, b"SINGLEFLIGHT_KEY": os.fsencode(key), b"SINGLEFLIGHT_FENCE": b"%d" % fence}


def _added_by_python(name: bytes) -> bool:
    """Whether Python has set a variable: it changes a C locale (cron's), the command must not notice."""
    if name not in os.environb:
        return False
    try:
        given = Path("/proc/self/environ").read_bytes()
    except OSError:
        return False
    return not any(line.startswith(name + b"=") for line in given.split(b"\0"))


def _first_thing(terminal: Terminal | None) -> Callable[[], None]:
    """Return what the child does before it becomes the command."""
    parent = os.getpid()
    system = ctypes.CDLL(None)

    def prepare() -> None:
        if LINUX:
            # The kernel ends the command when this wrapper ends, even by KILL: nobody would renew.
            system.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        if terminal is not None:
            terminal.give(os.getpid())

    return prepare
