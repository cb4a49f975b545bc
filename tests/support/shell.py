"""An interactive shell on a terminal of its own, typed to by a test."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from typing import TYPE_CHECKING

from tests.support.wrapper import end_session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

PROMPT = "@@ "
CTRL_C, CTRL_Z = "\x03", "\x1a"


class Shell:
    """A bash with job control."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        attributes = termios.tcgetattr(theirs)
        attributes[3] &= ~termios.ECHO  # what is typed is not part of the output,
        attributes[3] |= termios.NOFLSH  # and Ctrl-C does not throw it away
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={"TERM": "dumb", **env, "PS1": PROMPT},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call
        )
        os.close(theirs)
        self.output = ""
        self.read_until(PROMPT)

    def type(self, text: str) -> None:
        """Type, as on a keyboard."""
        os.write(self._ours, text.encode())

    def read_until(self, text: str, timeout: float = 40.0) -> str:
        """Return all that was shown since the last call, up to and with a text."""
        deadline = time.monotonic() + timeout
        while text not in self.output:
            left = deadline - time.monotonic()
            assert left > 0, f"waited {timeout:g} s in vain for {text!r}; shown: {self.output!r}"
            if select.select([self._ours], [], [], left)[0]:
                self.output += os.read(self._ours, 65536).decode(errors="replace")
        shown, self.output = self.output.split(text, 1)
        return shown + text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_session(self._process.pid)
        self._process.wait(10)
        os.close(self._ours)
