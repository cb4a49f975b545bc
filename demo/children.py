"""The demo's processes: each in a group of its own, and neither they nor their files outlive the demo."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PR_SET_PDEATHSIG = 1
SWEEP = 'cat; for n in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$0" && break; sleep 0.2; done'
"""Waits for the end of its input, which is the demo's end too, and removes a directory.

More than once: those who are being killed at that moment may still write to it.
"""
TAIL = 30
"""Lines of a child's output that are shown when it fails."""


class ChildFailed(RuntimeError):
    """Raised when a child ends or stays silent where it should be up; carries the end of its output."""


class Child:
    """One program, started at once; its output goes to a file without a name."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start the program."""
        self.name = name
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self.process = subprocess.Popen(  # noqa: S603 - our own programs
            argv,
            env=env,
            # Whatever a program might leave in its working directory, it cannot leave in the user's.
            cwd="/",
            pass_fds=pass_fds,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 - the demo has one thread while it starts children
        )

    @property
    def pid(self) -> int:
        """The process id, which is also the group's."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def output(self) -> str:
        """Return all that it has printed."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def tail(self) -> str:
        """Return the last lines that it has printed."""
        return "\n".join(self.output().splitlines()[-TAIL:])

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it and its group at once, and wait for it; does nothing if they are gone."""
        # A process that has not been waited for keeps its id, and its group's, from being used again.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._output.close()


class Children:
    """All processes of one demo; leaving the block ends them, whatever the reason.

    Their temporary files go to one directory, which goes too. Should the demo be killed with SIGKILL, the
    kernel ends the children (Linux), and a shell that waits for the demo's end removes the directory.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        """Make the directory, and start who removes it."""
        self.directory = tempfile.mkdtemp(prefix="singleflight-demo-")
        self._sweeper = subprocess.Popen(  # noqa: S603 - our own program
            ["/bin/sh", "-c", SWEEP, self.directory],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def add(self, child: Child) -> Child:
        """Take responsibility for a child."""
        self._children.append(child)
        return child

    def __exit__(self, *_: object) -> None:
        """End all, and wait until the directory is gone."""
        # Workers before their broker, so that none of them sees it vanish.
        for child in reversed(self._children):
            child.kill()
        self._sweeper.communicate()


def _die_with_parent() -> Callable[[], None] | None:
    """Return what a new child does first so that it ends with the demo, even with a killed one (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def first() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had died before we asked
            os._exit(1)

    return first
