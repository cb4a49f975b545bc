"""Scenarios 147 to 164: the command line, on a real Valkey and with real processes.

Scenario 150, the exit codes, is a table of its own in tests/integration/test_cli_table.py.
"""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
import redis

from singleflight import Lease, try_lease
from singleflight.keys import lease_key
from singleflight.stores import open_store
from tests.support.bodylog import BodyLog, overlaps
from tests.support.servers import ValkeyServer
from tests.support.waiting import until
from tests.support.wrapper import (
    IGNORES_TERM,
    PATIENCE,
    WORKS,
    Program,
    as_shell,
    end_session,
    logging,
    ours,
    waits,
    with_log,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from singleflight.stores.base import Store


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A server that no test stops."""
    with ValkeyServer() as running:
        yield running


@pytest.fixture
def log(tmp_path: Path) -> BodyLog:
    """The log that commands write to."""
    return BodyLog(tmp_path / "bodies.log")


@pytest.fixture
def program(server: ValkeyServer, tmp_path: Path) -> Program:
    """`singleflight run` on the server server."""
    return with_log(server, tmp_path)


@pytest.fixture
def store(server: ValkeyServer) -> Iterator[Store]:
    """The store as the test sees it."""
    opened = open_store(server.url)
    yield opened
    opened.close()


@pytest.fixture
def key(tmp_path: Path) -> str:
    """The key of this test's lease."""
    return lease_key(tmp_path.name, "lk")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_scenario_149_a_signal_ends_the_waiting_and_nothing_is_left(
    program: Program, store: Store, key: str, number: signal.Signals
) -> None:
    """A waiter that is told to end does, its command never starts, and nobody waits any more."""
    with program.holding(), program.started("LEASE", "echo", "ran") as waiter:
        until(lambda: waits(store, key))
        waiter.send_signal(number)
        output, complaints = waiter.communicate(timeout=PATIENCE)
        look = store.peek(key)

    assert (as_shell(waiter.returncode), output, complaints) == (128 + number, "", "")
    assert look is not None
    assert (look.record.slot, len(look.record.runs)) == ("", 1)


def test_scenario_161_another_run_starts_only_after_a_slow_end(program: Program, log: BodyLog) -> None:
    """A command that takes its time to end on TERM keeps the lease until it has ended."""
    slow = (
        "import signal\ndef end(*_):\n    body.work(1.5); sys.exit(5)\nsignal.signal(signal.SIGTERM, end)\n"
    )
    with program.started("LEASE", *logging(slow + WORKS), "first", "60") as first:
        until(log.runs)
        with program.started("LEASE", *logging(WORKS), "second", "0") as second:
            first.send_signal(signal.SIGTERM)
            codes = first.wait(PATIENCE), second.wait(PATIENCE)

    assert codes == (5, 0)
    assert [run.run for run in log.runs()] == ["first", "second"]
    assert overlaps(log.runs()) == []


def test_scenario_161_with_kill_after_a_term_is_followed_by_kill(program: Program, log: BodyLog) -> None:
    """Asked for by name, KILL ends a command that does not end on the TERM that was passed on."""
    with program.started(
        "--kill-after", "200ms", "LEASE", *logging(IGNORES_TERM + WORKS), "1", "60"
    ) as process:
        until(log.runs)
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)

    assert code == 128 + signal.SIGKILL


def test_scenario_155_a_key_deleted_by_hand_is_taken_back(
    program: Program, server: ValkeyServer, key: str, log: BodyLog
) -> None:
    """With nobody else there, the record is written back and the command runs on."""
    client = redis.Redis.from_url(server.url)
    with program.started("--ttl", "1.5", "LEASE", *logging(WORKS), "1", "3") as process:
        until(log.runs)
        assert client.delete(key) == 1
        until(lambda: client.exists(key))
        _, complaints = process.communicate(timeout=PATIENCE)
    client.close()

    assert process.returncode == 0
    assert "Traceback" not in complaints


def test_scenario_153_a_killed_wrapper_takes_its_command_along(program: Program, log: BodyLog) -> None:
    """After kill -9 of the wrapper the command ends at once, and the next one starts after the ttl."""
    with program.started("--ttl", "2", "LEASE", *logging(WORKS), "first", "60") as first:
        until(log.runs)
        first.kill()
        second = program.run("--ttl", "2", "LEASE", *logging(WORKS), "second", "0")

    assert second.returncode == 0
    assert [run.run for run in log.runs()] == ["first", "second"]
    assert overlaps(log.runs()) == []


def test_scenario_156_standard_input_passes_through(program: Program) -> None:
    """The command reads what was piped in, byte by byte, and an empty input is empty."""
    assert program.run("LEASE", "cat", input="foo\n").stdout == "foo\n"
    assert program.run("LEASE", "cat").stdout == ""


def test_scenario_156_closed_and_further_descriptors_pass_through(program: Program, tmp_path: Path) -> None:
    """A closed stdin stays closed in the command, and a descriptor beyond stderr is still there."""
    (tmp_path / "third").write_text("three\n")
    inner = "test -e /proc/$$/fd/0 && echo open || echo closed; cat <&3"
    outer = f'exec "$@" <&- 3<{tmp_path}/third'
    done = subprocess.run(
        ["sh", "-c", outer, "sh", *program.command("LEASE", "sh", "-c", inner)],
        env=program.env, stdout=subprocess.PIPE, text=True, timeout=PATIENCE,
    )  # fmt: skip

    assert done.stdout == "closed\nthree\n"


@pytest.fixture
def guarded() -> Iterator[ValkeyServer]:
    """A server with a password."""
    with ValkeyServer("--requirepass", "open sesame") as running:
        yield running


def test_scenario_159_no_password_is_shown_to_anyone(guarded: ValkeyServer, tmp_path: Path) -> None:
    """A password in the variable or the file is in nobody's arguments, nor in the command's environment."""
    url = f"redis://:open%20sesame@127.0.0.1:{guarded.port}/0"
    (tmp_path / "url").write_text(f"{url}\n")
    show = ["sh", "-c", "cat /proc/$PPID/cmdline /proc/$$/environ"]
    by_variable = ours(url, tmp_path).run("LEASE", *show, errors="replace")
    by_file = ours("", tmp_path).run("--url-file", str(tmp_path / "url"), "LEASE", *show, errors="replace")

    assert (by_variable.returncode, by_file.returncode) == (0, 0)
    assert "sesame" not in by_variable.stdout + by_file.stdout


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:open%20sesame@127.0.0.1:{port}/0",
        "redis://127.0.0.1:{port}/0?password=open+sesam",
        "redis://:sesame@[127.0.0.1:{port}/0",
        "redis://:open/sesame@127.0.0.1:{port}/0",
        "redis://:sesame#open@127.0.0.1:{port}/0",
        "redis://:sesame@127.0.0.1:1/0",
    ],
)
def test_scenario_159_no_error_shows_a_password(guarded: ValkeyServer, tmp_path: Path, url: str) -> None:
    """Whatever is wrong with a URL or its password, the complaint does not repeat it."""
    done = ours(url.format(port=guarded.port), tmp_path).run("-n", "LEASE", "true")

    assert done.returncode in (100, 113)
    assert "sesam" not in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_scenario_147_a_term_to_the_wrapper_ends_the_command_its_way(program: Program) -> None:
    """The command gets the TERM, the wrapper waits for it and ends with its code, and the lease is free."""
    script = "trap 'echo got; exit 3' TERM; sleep 60 >/dev/null 2>&1 & echo ready; wait"
    with program.started("LEASE", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    after = program.run("-n", "LEASE", "true")

    assert (process.returncode, output) == (3, "got\n")
    assert after.returncode == 0


def test_scenario_164_a_crashed_host_blocks_for_its_ttl_and_no_longer(
    program: Program, store: Store, key: str, log: BodyLog
) -> None:
    """Wrapper and command die at once: a waiter starts when the lease has lapsed."""
    with program.started("--ttl", "2", "LEASE", *logging(WORKS), "first", "60") as first:
        until(log.runs)
        with program.started("--ttl", "2", "LEASE", *logging(WORKS), "second", "0") as second:
            until(lambda: waits(store, key))
            end_session(first.pid)
            died = time.monotonic()
            code = second.wait(PATIENCE)
    started = log.runs()[1].started

    assert code == 0
    assert overlaps(log.runs()) == []
    # Far from a bound that a busy machine could miss: the point is that nothing like 60 s is waited for.
    assert started - died < 20


def test_scenario_155_a_key_that_another_run_took_is_lost(
    program: Program, server: ValkeyServer, key: str, log: BodyLog
) -> None:
    """With a waiter there, the deleted key is the waiter's, and the command is ended: 112, no traceback."""
    with program.started("--ttl", "1.5", "LEASE", *logging(WORKS), "1", "60") as process:
        until(log.runs)
        with redis.Redis.from_url(server.url) as client:
            client.delete(key)
        taken = try_lease(server.url, "lk", prefix=key.partition(":")[0])
        _, complaints = process.communicate(timeout=PATIENCE)

    assert isinstance(taken, Lease)
    assert process.returncode == 112
    assert "Traceback" not in complaints
    taken.release()
