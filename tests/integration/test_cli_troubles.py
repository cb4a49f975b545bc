"""`singleflight run` where stderr is broken or the store hangs: it ends in time, with the right code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from singleflight import Lease, try_lease
from singleflight.stores import open_store
from tests.support.proxy import FaultProxy, Mode
from tests.support.servers import ValkeyServer
from tests.support.waiting import until
from tests.support.wrapper import PATIENCE, Program, as_shell, ours, with_log

if TYPE_CHECKING:
    from collections.abc import Iterator


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A server that no test stops."""
    with ValkeyServer() as running:
        yield running


@contextmanager
def full_disk() -> Iterator[int]:
    """Lend a descriptor that takes nothing, as on a full disk."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@contextmanager
def closed_pipe() -> Iterator[int]:
    """Lend a pipe that nobody reads from any more."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


def _code(program: Program, stderr: int, *words: str) -> int:
    ended = subprocess.run(
        program.command(*words), env=program.env, stdin=subprocess.DEVNULL, stderr=stderr, timeout=PATIENCE
    )
    return as_shell(ended.returncode)


@FULL
@pytest.mark.parametrize("stderr", [full_disk, closed_pipe])
def test_where_nothing_can_be_said_the_exit_code_is_what_it_was(
    server: ValkeyServer, tmp_path: Path, stderr: object
) -> None:
    """A full disk or a closed pipe as stderr costs the line and nothing else."""
    program = with_log(server, tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = ours(f"redis://127.0.0.1:{nobody.getsockname()[1]}/0", tmp_path)
        with stderr() as broken:  # type: ignore[operator]
            assert _code(program, broken, "--timeout", "0.2", "LEASE", "sleep", "60") == 124
            assert _code(program, broken, "LEASE", "/") == 126
            assert _code(program, broken, "LEASE", "no-such-command") == 127
            assert _code(program, broken, "--ttl", "x", "LEASE", "true") == 100
            assert _code(away, broken, "-n", "LEASE", "true") == 113
            with program.holding():
                assert _code(program, broken, "-n", "LEASE", "true") == 111
                assert _code(program, broken, "-n", "-E", "5", "LEASE", "true") == 5
                assert _code(program, broken, "-n", "-x", "LEASE", "true") == 0


@FULL
def test_a_lost_lease_ends_with_its_code_where_nothing_can_be_said(
    server: ValkeyServer, tmp_path: Path
) -> None:
    """What listens to the loss writes to stderr too, in another thread."""
    program, store = with_log(server, tmp_path), open_store(server.url)
    with full_disk() as broken:
        process = subprocess.Popen(
            program.command("--ttl", "2", "LEASE", "sleep", "60"),
            env=program.env, stdin=subprocess.DEVNULL, stderr=broken,
        )  # fmt: skip
        try:
            (key,) = until(lambda: list(store.scan(tmp_path.name)), what="the lease")  # type: ignore[attr-defined]
            until(lambda: store.evict(key))
            assert process.wait(PATIENCE) == 112
        finally:
            process.kill()
            process.wait(PATIENCE)


# A store that hangs


@pytest.fixture
def line(server: ValkeyServer) -> Iterator[FaultProxy]:
    """A line to the server that a test may hold up."""
    with FaultProxy(server.port) as proxy:
        yield proxy


@pytest.mark.parametrize("option", ["-n", "-N", "--occurrence=2031-01-01T00:00Z"])
def test_a_term_ends_it_at_once_while_a_request_hangs(line: FaultProxy, tmp_path: Path, option: str) -> None:
    """With 143, as a signal ends any other program, and not with what became of the request."""
    line.mode = Mode.HOLD
    program = ours(line.url, tmp_path)
    with program.started(option, "LEASE", "true") as process:
        until(lambda: line._open, what="the request")
        time.sleep(0.2)  # it is under way, and hangs for seconds
        sent = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)
        took = time.monotonic() - sent

    assert as_shell(code) == 143
    assert took < 2.5


def test_a_lease_that_comes_after_the_signal_is_given_back(
    server: ValkeyServer, line: FaultProxy, tmp_path: Path
) -> None:
    """The store may just be slow."""
    line.delay = 0.01
    program = ours(line.url, tmp_path, SINGLEFLIGHT_PREFIX=tmp_path.name)
    with program.started("LEASE", "sleep", "60") as process:
        until(lambda: line._open, what="the request")
        process.send_signal(signal.SIGTERM)
        assert as_shell(process.wait(PATIENCE)) == 143

    answer = try_lease(server.url, "lk", prefix=tmp_path.name)
    assert isinstance(answer, Lease), answer
    answer.release()


def test_a_term_ends_the_command_and_a_release_that_hangs(line: FaultProxy, tmp_path: Path) -> None:
    """The command's end is the end; what could not be recorded lapses by its ttl."""
    program = ours(line.url, tmp_path, SINGLEFLIGHT_PREFIX=tmp_path.name)
    with program.started("LEASE", "sh", "-c", "echo runs; exec sleep 60") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        line.mode = Mode.HOLD
        sent = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)
        took = time.monotonic() - sent

    assert as_shell(code) == 143
    assert took < 3.5
