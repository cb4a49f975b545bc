"""A TCP proxy for tests that fails on demand, as networks do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

LOOPBACK = "127.0.0.1"
# Linger for no time at all: closing sends RST, what a crashed peer or a firewall sends.
RESET = struct.pack("ii", 1, 0)


class Mode(Enum):
    """What happens to bytes on their way."""

    PASS = "they arrive"
    HOLD = "they wait until the mode changes: connections stay open and nothing comes through"
    DROP_REPLIES = "requests arrive and replies vanish: the command has run and its sender never hears"


class FaultProxy:
    """Forwards a loopback port to a server on another one, until a test tells it otherwise.

    ``delay`` is the seconds that each piece of traffic is late. ``upstream_port`` may change, as a name
    does that is pointed to another server: open connections stay where they are.
    """

    def __init__(self, upstream_port: int) -> None:
        self.mode = Mode.PASS
        self.delay = 0.0
        self.port = 0
        self.upstream_port = upstream_port
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = self._listen()

    @property
    def url(self) -> str:
        """Where the server seems to listen."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def reset(self) -> None:
        """Break all open connections; new ones are accepted."""
        with self._lock:
            doomed, self._open = self._open, set()
        for end in doomed:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            _close(end)

    def refuse(self) -> None:
        """Break all open connections and refuse new ones."""
        _close(self._listener)
        self.reset()

    def accept_again(self) -> None:
        """Listen on the same port as before."""
        self._listener = self._listen()

    def close(self) -> None:
        """End everything."""
        self._closed = True
        self.refuse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((LOOPBACK, self.upstream_port), timeout=5)
            except OSError:
                _close(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            for source, target, replies in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, target, replies), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                while self.mode is Mode.HOLD and not self._closed:
                    time.sleep(0.005)
                time.sleep(self.delay)
                if not (replies and self.mode is Mode.DROP_REPLIES):
                    target.sendall(piece)
        with self._lock:
            self._open -= {source, target}
        _close(source)
        _close(target)


def _close(end: socket.socket) -> None:
    """Close a socket and wake whoever waits on it."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
