"""A child process in its own process group, with a log, that never outlives the test run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MARK = "SINGLEFLIGHT_TEST_RUN"
"""Environment variable that every child of one test run inherits; `survivors` finds them by it."""

DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
"""Has the kernel end a child when the thread that started it ends, even by SIGKILL (Linux)."""


class Child:
    """One program, started at once.

    Args:
        argv: program and arguments.
        log: file that gets its output; a restart appends to it.
        ready: text in the log that says that the program is up.
        env: variables added to this process's own.
        cwd: working directory; the log's folder unless given.
    """

    def __init__(
        self,
        argv: Sequence[object],
        *,
        log: Path,
        ready: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._argv = [*DIE_WITH_PARENT, *(str(part) for part in argv)]
        self._log = log
        self._ready = ready
        self._env = dict(env or {})
        self._cwd = cwd or log.parent
        self.start()

    def start(self) -> None:
        """Start the program (again); `wait_ready` tells when it is up."""
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                env={**os.environ, **self._env},
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The program's process id, which is also its group's."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the program itself still runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The program's exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def log(self) -> str:
        """Return all it has printed, restarts included."""
        return self._log.read_text(errors="replace")

    def children(self) -> list[int]:
        """Return the process ids of its children, oldest first."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process.pid for process in sorted(found, key=psutil.Process.create_time)]

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until it says that it is up.

        Raises:
            AssertionError: if it ends first, or says nothing within `timeout` seconds; with its log.
        """

        def up_or_gone() -> bool:
            return self._ready.encode() in self._log.read_bytes()[self._log_start :] or not self.alive

        until(up_or_gone, timeout, f"{self._ready!r} in {self._log}:\n{self.log()}")
        assert self.alive, f"{self._argv} ended with {self.exit_code}:\n{self.log()}"

    def send(self, number: int) -> None:
        """Send a signal to the program alone, not to its children."""
        self._process.send_signal(number)

    def wait(self, timeout: float = 60.0) -> int:
        """Wait until the program has ended; return its exit code.

        A Celery worker may take half a minute: as long as its pool gives a result that nobody reads any more.
        """
        return self._process.wait(timeout)

    def stop(self, timeout: float = 60.0) -> int:
        """Ask it to end as its operator would (SIGTERM), and wait."""
        self.send(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """End it and all of its group at once (SIGKILL); does nothing if they are gone."""
        # A group lives as long as any member, so this also reaches children whose parent is gone.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        until(lambda: not _group(self.pid), 10, f"the end of group {self.pid}")


def survivors(mark: str) -> list[psutil.Process]:
    """Return every process of the test run `mark` but this one, also those that lost their parent."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return [process for process in found if process.pid != os.getpid()]


def _group(group: int) -> list[int]:
    members = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members
