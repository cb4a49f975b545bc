"""A Redis that speaks TLS only and asks its clients for certificates, all made for the test."""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tests.support.servers import ValkeyServer, missing

if TYPE_CHECKING:
    from pathlib import Path

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Certificates:
    """An authority, and certificates that it signed for a server on the loopback and for a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl("req", "-x509", *CURVE, "-days", "2", "-subj", "/CN=authority", *self._files("ca"))
        for name, more in (("server", ["-addext", "subjectAltName=IP:127.0.0.1"]), ("client", [])):
            self._openssl(
                *("req", "-x509", *CURVE, "-days", "2", "-subj", f"/CN={name}", *more),
                *("-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"), *self._files(name)),
            )

    def path(self, name: str) -> str:
        """Return where one of the files is."""
        return str(self.folder / name)

    @property
    def for_client(self) -> dict[str, str]:
        """What redis-py and Celery call the files that a client needs."""
        return {
            "ssl_ca_certs": self.path("ca.crt"),
            "ssl_certfile": self.path("client.crt"),
            "ssl_keyfile": self.path("client.key"),
        }

    def _files(self, name: str) -> list[str]:
        return ["-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.crt")]

    def _openssl(self, *arguments: str) -> None:
        program = shutil.which("openssl")
        if program is None:
            missing("openssl", "sudo apt-get install openssl")
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr


class TlsServer(ValkeyServer):
    """The distribution's Redis, which knows TLS; `socket_path` is its only door without it."""

    def __init__(self, certificates: Certificates, *arguments: str) -> None:
        super().__init__(*arguments, server="redis")
        self.certificates = certificates

    @property
    def url(self) -> str:
        """Where a user with all rights finds the server."""
        return self.url_of("default", "")

    def url_of(self, user: str, password: str, **options: str) -> str:
        """Return where a user finds the server, certificates included."""
        query = urlencode({**self.certificates.for_client, **options})
        return f"rediss://{user}:{password}@127.0.0.1:{self.port}/0?{query}"

    def _options(self) -> list[str]:
        mine = self.certificates
        return [
            *("--port", "0", "--tls-port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--tls-cert-file", mine.path("server.crt"), "--tls-key-file", mine.path("server.key")),
            *("--tls-ca-cert-file", mine.path("ca.crt"), "--tls-auth-clients", "yes"),
            *("--unixsocket", str(self.socket_path), "--save", "", "--appendonly", "no"),
        ]

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(self.socket_path))
                connection.sendall(b"PING\r\n")
                return connection.recv(1) == b"+"
        except OSError:
            return False
