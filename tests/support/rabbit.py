"""RabbitMQ as a child process of a test, with a port mapper of its own, on ephemeral loopback ports."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.databases import Server, find_program
from tests.support.servers import free_port

if TYPE_CHECKING:
    from typing import Self

DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The program itself; what Debian has on PATH under that name insists on its own user and folders."""


class PortMapper(Server):
    """Erlang's `epmd`, in which a node registers; without it a node starts one that outlives it."""

    name = "epmd"

    def command(self) -> list[str]:
        """Return program and arguments."""
        program = find_program("epmd", "rabbitmq-server", "usr/lib/erlang/bin")
        return [program, "-address", "127.0.0.1", "-port", str(self.port)]

    def is_up(self, printed: str) -> bool:
        """Whether it answers: it prints nothing."""
        del printed
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


class RabbitServer(Server):
    """RabbitMQ with its one user, `guest`; queues that are durable outlive a restart."""

    name = "rabbitmq"
    ready = "Server startup complete"
    patience = 240  # it takes seven seconds of computing, on a machine that may have twenty others to serve

    def __init__(self) -> None:
        self._program = str(DEBIAN) if DEBIAN.exists() else find_program("rabbitmq-server", "rabbitmq-server")
        self._mapper = PortMapper()
        self._node_port = free_port()
        super().__init__()

    def prepare(self) -> None:
        """Write its configuration."""
        (self.folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        (self.folder / "plugins").write_text("[].\n")

    def command(self) -> list[str]:
        """Return program and arguments."""
        return [self._program]

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the server: all its files are in its folder, and only this machine can reach it."""
        folder = str(self.folder)
        return {
            "HOME": folder,  # its cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._mapper.port),
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_NODENAME": f"singleflight{self.port}@localhost",
            # Local, and without waiting busily for work.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} "
            "+sbwt none +sbwtdcpu none +sbwtdio none",
            # Its script becomes the server instead of waiting for it, so that the server dies with the tests.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def start(self) -> Self:
        """Start the port mapper, then the server, and wait until it is up."""
        self._mapper.start()
        return super().start()

    def kill(self) -> None:
        """End server and port mapper as kill -9 does; the data stays."""
        super().kill()
        self._mapper.kill()

    def close(self) -> None:
        """End both and remove their folders."""
        super().close()
        self._mapper.close()
