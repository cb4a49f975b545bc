"""DynamoDB emulators as child processes of a test, and a proxy that says no as AWS does."""

from __future__ import annotations

import json
import random
import shutil
import socket
import sys
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tests.support.databases import Server
from tests.support.servers import missing

if TYPE_CHECKING:
    from typing import Self

REGION = "eu-west-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
"""What clients of the emulators need in their environment; nothing checks it."""


class Emulator(Server):
    """A server that speaks DynamoDB; its tables die with it."""

    account = ""  # it is a program of this very Python, which others may not be able to read

    def is_up(self, printed: str) -> bool:
        """Whether it takes connections; what it prints says nothing."""
        del printed
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def table(self, name: str = "leases", port: int | None = None) -> str:
        """Return the URL of a store in a table, perhaps behind another port."""
        return f"dynamodb://{name}?region={REGION}&endpoint=http://127.0.0.1:{port or self.port}"

    @property
    def url(self) -> str:
        """The store in the table `leases`."""
        return self.table()


class Ministack(Emulator):
    """The emulator from PyPI; it handles one request at a time."""

    name = "ministack"

    @property
    def environment(self) -> dict[str, str]:
        """What it is told."""
        return {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(self.port), "SERVICES": "dynamodb"}

    def command(self) -> list[str]:
        """Return program and arguments."""
        return [sys.executable, "-m", "ministack"]


class Dynalite(Emulator):
    """The emulator from npm: a second opinion, stricter about what is asked."""

    name = "dynalite"

    def __init__(self) -> None:
        found = shutil.which("dynalite")
        if found is None and shutil.which("node") is None:
            pytest.skip("dynalite needs Node, which is not on this machine")
        if found is None:
            missing("dynalite", "npm install --global dynalite@4.0.0")
        self._program = str(found)
        super().__init__()

    def command(self) -> list[str]:
        """Return program and arguments."""
        return [self._program, "--host", "127.0.0.1", "--port", str(self.port), "--createTableMs", "0"]


class Refusals:
    """A server between client and emulator that answers some requests itself, as AWS would.

    `refuse(code, times)` has the next requests refused; `lose_answers(times)` has them carried out and their
    answers lost; all others pass.
    """

    ENDLESS: ClassVar[int] = 1 << 30

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.requests: list[str] = []
        self._refusals: list[tuple[str, int]] = []
        self._lost = 0
        self._throttled = 0.0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._answer(self)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def refuse(self, code: str, times: int = 1) -> None:
        """Answer the next requests with an error."""
        with self._lock:
            self._refusals = [(code, times)]

    def throttle(self, part: float) -> None:
        """Refuse this part of all requests from now on, whichever they are."""
        self._throttled = part

    def lose_answers(self, times: int = 1) -> None:
        """Carry the next writes out and break the connection instead of answering."""
        with self._lock:
            self._lost = times

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        operation = str(handler.headers["X-Amz-Target"]).rpartition(".")[2]
        with self._lock:
            self.requests.append(operation)
            code = self._next_refusal()
            lose = operation == "PutItem" and self._lost > 0
            self._lost -= lose
        if code:
            content = json.dumps({"__type": f"com.amazon.coral#{code}", "message": f"{code}, says the test"})
            status, headers, data = 400, {"Content-Type": "application/x-amz-json-1.0"}, content.encode()
        else:
            status, headers, data = self._forward(dict(handler.headers), body)
        if lose:
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        handler.send_response(status)  # dates it, too
        for name, value in headers.items():
            if name.lower() not in ("date", "server", "content-length", "transfer-encoding", "connection"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _next_refusal(self) -> str:
        if random.random() < self._throttled:
            return "ThrottlingException"
        if not self._refusals:
            return ""
        code, times = self._refusals[0]
        self._refusals = [(code, times - 1)] if times > 1 else []
        return code

    def _forward(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.upstream, timeout=10)
        try:
            connection.request("POST", "/", body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()
