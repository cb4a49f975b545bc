"""`singleflight run` and Debian's `setlock` as child processes, called with the very same words."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.bodylog import VARIABLE
from tests.support.commands import import_path
from tests.support.servers import missing
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from singleflight.stores.base import Store
    from tests.support.servers import ValkeyServer

PATIENCE = 40
"""Seconds after which a program that should have ended counts as hanging."""

SINGLEFLIGHT = Path(sys.executable).with_name("singleflight")

BODY = "import sys; from tests.support.bodylog import BodyLog; log = BodyLog.from_environment()\n"
"""How a command begins that writes to the log of bodies; see `logging`."""
WORKS = "with log.body('lk', sys.argv[1]) as body: body.work(float(sys.argv[2]))"
"""How it goes on: the run's name, and for how many seconds it works, are its arguments."""
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
"""What it says first to be hard to end."""


@dataclass(frozen=True)
class Program:
    """A program with setlock's interface."""

    argv: tuple[str, ...]
    lease: str
    """What stands for the lease on its command line."""
    env: dict[str, str]

    def command(self, *words: str) -> list[str]:
        """Return the whole command line; ``LEASE`` stands for the lease."""
        return [*self.argv, *(self.lease if word == "LEASE" else word for word in words)]

    def run(self, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        settings: dict[str, object] = {"stdin": subprocess.DEVNULL, **options}
        if "input" in options:
            del settings["stdin"]
        return subprocess.run(
            self.command(*words), env=self.env, capture_output=True, text=True, timeout=PATIENCE, **settings
        )

    @contextmanager
    def started(self, *words: str, **options: object) -> Iterator[subprocess.Popen[str]]:
        """Start it; whatever happens, it has ended afterwards, and so has all of its session."""
        settings: dict[str, object] = {"stdin": subprocess.PIPE, "env": self.env, **options}
        process = subprocess.Popen(
            self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, **settings,
        )  # fmt: skip
        try:
            yield process
        finally:
            end_session(process.pid)
            process.wait(PATIENCE)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()

    @contextmanager
    def holding(self) -> Iterator[subprocess.Popen[str]]:
        """Hold the lease with a command that ends when its stdin does."""
        with self.started("LEASE", "sh", "-c", "echo held; read line; exit 0") as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield holder


def ours(url: str, folder: Path, **env: str) -> Program:
    """Return `singleflight run` by its name ``setlock``: the same words mean the same."""
    link = folder / "bin" / "setlock"
    if not link.is_symlink():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(SINGLEFLIGHT)
    return Program((str(link),), "lk", {**os.environ, "SINGLEFLIGHT_URL": url, **env})


def with_log(server: ValkeyServer, folder: Path, **env: str) -> Program:
    """Return `singleflight run` with keys of its own, whose commands can write to the log."""
    more = {VARIABLE: str(folder / "bodies.log"), "SINGLEFLIGHT_PREFIX": folder.name, **env}
    return ours(server.url, folder, **import_path(folder), **more)


def debians(folder: Path) -> Program:
    """Return Debian's setlock."""
    found = shutil.which("setlock")
    if found is None:
        missing("setlock", "sudo apt-get install daemontools")
    return Program((str(found),), str(folder / "lk"), dict(os.environ))


def as_shell(code: int) -> int:
    """Return what `$?` would be."""
    return code if code >= 0 else 128 - code


def needed(module: str, package: str) -> None:
    """Skip on a laptop, and fail in CI, if a Python package is not installed."""
    if importlib.util.find_spec(module) is None:
        missing(package, f"{sys.executable} -m pip install {package}")


def gone(pid: int) -> bool:
    """Return whether a process has ended, perhaps without anybody having taken note."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def end_session(leader: int) -> None:
    """Kill every process of a session, in whatever group."""

    def members() -> list[int]:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pid = int(place.name)
                state = (place / "stat").read_text().rpartition(")")[2].split()
                if os.getsid(pid) == leader and state[0] != "Z":
                    found.append(pid)
        return found

    def gone() -> bool:
        left = members()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    until(gone, 10, f"the end of session {leader}")


def logging(code: str) -> Sequence[str]:
    """Return a command that writes to the log of bodies: ``log`` is the `BodyLog`."""
    return [sys.executable, "-c", BODY + code]


def waits(store: Store, key: str) -> bool:
    """Return whether somebody waits for a key."""
    look = store.peek(key)
    return look is not None and look.record.slot != ""
