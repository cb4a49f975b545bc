"""PostgreSQL, MariaDB and pgbouncer as child processes of a test, on ephemeral loopback ports."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil

from tests.support.child import DIE_WITH_PARENT
from tests.support.servers import free_port, missing
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self


def find_program(name: str, package: str, *folders: str) -> str:
    """Return a program's path, also from folders that are not on PATH; skip or fail if it is not there."""
    newest_first = sorted((str(each) for folder in folders for each in Path("/").glob(folder)), reverse=True)
    path = os.pathsep.join([os.environ.get("PATH", ""), *newest_first, "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        missing(name, f"sudo apt-get install {package}")
    return str(found)


class Server:
    """A server with a folder of its own that keeps port and data over restarts."""

    name: ClassVar[str]
    account: ClassVar[str] = "nobody"
    """Who the server runs as when the tests run as root, whom databases refuse; empty: the same."""
    ready: ClassVar[str] = ""
    """What it prints when it is up."""
    patience: ClassVar[float] = 30
    """Seconds that its start may take on a busy machine."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"singleflight-{self.name}-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._user = {}
        if os.geteuid() == 0 and self.account:
            account = pwd.getpwnam(self.account)
            self._user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        try:
            self.prepare()
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """Make what the server needs before its first start."""

    def command(self) -> list[str]:
        """Return program and arguments."""
        raise NotImplementedError

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the server."""
        return {}

    @property
    def url(self) -> str:
        """Where the server listens, as a store's URL."""
        raise NotImplementedError

    def is_up(self, printed: str) -> bool:
        """Whether the server can be used, by what it has printed since its start."""
        return self.ready in printed

    def start(self) -> Self:
        """Start the server and wait until it is up."""
        log = self.folder / "server.log"
        start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*DIE_WITH_PARENT, *self.command()],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                **self._user,
            )
        try:
            until(
                lambda: (
                    self._process.poll() is not None
                    or self.is_up(log.read_bytes()[start:].decode(errors="replace"))
                ),
                self.patience,
                f"the start of {self.name}",
            )
            assert self._process.poll() is None, f"{self.name} did not start:\n{log.read_text()}"
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """End the server and its children as kill -9 does; the data stays."""
        if self._process is None:
            return
        family = self._family()
        for process in family:
            process.kill()
        self._process.wait(10)
        psutil.wait_procs(family, 10)
        self._process = None

    def restart(self) -> Self:
        """Kill the server and start it again on its data."""
        self.kill()
        return self.start()

    def pause(self) -> None:
        """Stop the server in its tracks: connections stay open and nothing answers."""
        for process in self._family():
            process.suspend()

    def resume(self) -> None:
        """Let a paused server go on."""
        for process in self._family():
            process.resume()

    def close(self) -> None:
        """End the server and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, command: Sequence[str]) -> None:
        """Run a program as the server's user, and insist that it succeeds."""
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=60, **self._user
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None, f"{self.name} is not running"
        try:
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


class PostgresServer(Server):
    """PostgreSQL with one user who needs no password, `postgres`; `arguments` are given to the server."""

    name = "postgresql"
    ready = "database system is ready to accept connections"

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._program = find_program("postgres", "postgresql", "usr/lib/postgresql/*/bin")
        super().__init__()

    def prepare(self) -> None:
        """Make a cluster of databases."""
        initdb = str(Path(self._program).with_name("initdb"))
        options = ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"]
        self.run([initdb, "-D", str(self.folder / "data"), *options])

    def command(self) -> list[str]:
        """Return program and arguments."""
        settings = ["listen_addresses=127.0.0.1", "fsync=off", "max_connections=200", *self._arguments]
        options = [part for setting in settings for part in ("-c", setting)]
        place = ["-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)]
        return [self._program, *place, *options]

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"


class MariaServer(Server):
    """MariaDB with one user who needs no password, `root`, and a database `test`."""

    name = "mariadb"
    ready = "ready for connections"

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._program = find_program("mariadbd", "mariadb-server")
        super().__init__()

    def prepare(self) -> None:
        """Make a data directory."""
        install = find_program("mariadb-install-db", "mariadb-server")
        options = ["--no-defaults", "--auth-root-authentication-method=normal"]
        self.run([install, *options, f"--datadir={self.folder / 'data'}"])

    def command(self) -> list[str]:
        """Return program and arguments."""
        return [
            *(self._program, "--no-defaults", f"--datadir={self.folder / 'data'}"),
            *("--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self.folder / 'server.sock'}"),
            *(f"--pid-file={self.folder / 'server.pid'}", "--innodb-flush-log-at-trx-commit=2"),
            *("--max-connections=200", "--skip-name-resolve", *self._arguments),
        ]

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"mysql://root@127.0.0.1:{self.port}/test"


class TransactionPooler(Server):
    """A pgbouncer that lends a server connection for one transaction only, and recycles it every second."""

    name = "pgbouncer"
    ready = "process up"

    def __init__(self, server: PostgresServer, *, connections: int = 2) -> None:
        self._server, self._connections = server, connections
        self._program = find_program("pgbouncer", "pgbouncer")
        super().__init__()

    def prepare(self) -> None:
        """Write its configuration."""
        (self.folder / "pgbouncer.ini").write_text(
            f"""[databases]
postgres = host=127.0.0.1 port={self._server.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {self._connections}
server_lifetime = 1
"""
        )

    def command(self) -> list[str]:
        """Return program and arguments."""
        return [self._program, str(self.folder / "pgbouncer.ini")]

    @property
    def url(self) -> str:
        """Where the pooler listens."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
