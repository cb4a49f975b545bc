"""The witness: one append-only file that all processes of the demo write to.

It has no name: children inherit its descriptor, so nothing is left when they are gone, whatever ended
them. Each line is one JSON object written by one `write` with O_APPEND, so lines never mix. Times come from
the machine's monotonic clock, which all its processes share and nobody can step.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from typing import Any

DESCRIPTOR = "SINGLEFLIGHT_DEMO_LOG"
"""Environment variable with the descriptor's number."""

PROCESS = "SINGLEFLIGHT_DEMO_PROCESS"
"""Environment variable that names the process: ``beat 1``, ``worker 2``, ``users``."""

WITHOUT = "SINGLEFLIGHT_DEMO_WITHOUT"
"""Environment variable that turns singleflight off, to show what happens then."""


class Log:
    """The file, for its writers and for the one who reads it."""

    def __init__(self, descriptor: int, process: str) -> None:
        """Use a descriptor that is open for appending."""
        self.descriptor = descriptor
        self.process = process
        self._offset = 0
        self._rest = b""

    @classmethod
    def create(cls) -> Log:
        """Make a new file without a name."""
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
        return cls(descriptor, "demo")

    @classmethod
    def inherited(cls) -> Log:
        """Return the file that the demo handed to this process."""
        return cls(int(os.environ[DESCRIPTOR]), os.environ[PROCESS])

    def write(self, event: str, **facts: object) -> None:
        """Append one line: what happened, when, and in which process."""
        line = {"event": event, "at": time.monotonic(), "process": self.process, "pid": os.getpid(), **facts}
        os.write(self.descriptor, json.dumps(line).encode() + b"\n")

    def read_new(self) -> list[dict[str, Any]]:
        """Return the lines written since the last call."""
        chunks = [self._rest]
        while chunk := os.pread(self.descriptor, 1 << 16, self._offset):
            self._offset += len(chunk)
            chunks.append(chunk)
        *lines, self._rest = b"".join(chunks).split(b"\n")
        return [json.loads(line) for line in lines]
