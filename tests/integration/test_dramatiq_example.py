"""The example app of Dramatiq, as its README starts it: one process generates, all handle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.child import DIE_WITH_PARENT, Child
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = [sys.executable, "-m", "examples.dramatiq_app"]
TIMEOUT = 300
"""Seconds; twenty of computing, on a machine that may have others to serve."""

pytestmark = pytest.mark.timeout(TIMEOUT + 60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with the examples, and without the sources that would hide the installed package."""
    (tmp_path / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    return tmp_path


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """Return a server for one test."""
    with ValkeyServer() as server:
        yield server


def test_a_counted_run_loses_and_doubles_nothing_though_its_generator_is_killed(
    place: Path, server: ValkeyServer
) -> None:
    """Of 20,000 messages each is handled once; the faulty ones are kept until somebody takes them."""
    result = _run(place, server, "--count", "20000", "--interval", "0", "--kill-generator")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "which generated; another takes over" in result.stdout
    numbers = [int(text.replace(",", "")) for text in re.findall(r"│ ([\d,]+) +", result.stdout)]
    sent, handled, faulty, doubled, lost = numbers[:5]
    assert (sent, handled, doubled, lost) == (20_000, 20_000, 0, 0)
    assert 0 < faulty < 2_000
    errors = _run(place, server, "--get-errors").stdout.splitlines()
    assert len(errors) == len(set(errors)) == faulty
    assert _run(place, server, "--get-errors").stdout == ""


def test_exactly_one_process_generates_and_a_paused_one_sends_nothing(
    place: Path, server: ValkeyServer
) -> None:
    """Another process takes over from a paused generator, which stops generating as soon as it wakes up."""
    sys.path.insert(0, str(place))
    try:
        from examples.dramatiq_app.account import Account
    finally:
        sys.path.remove(str(place))
    account = Account(server.url, "live")
    processes = [
        Child(
            [*COMMAND, "--ttl", "2", "--interval", "0.05"],
            log=place / f"process{i}.log",
            ready="",
            env={"REDIS_URL": server.url, "PYTHONPATH": str(place)},
        )
        for i in range(3)
    ]
    by_pid = {process.pid: process for process in processes}
    try:
        until(lambda: account.totals().handled > 20, what="the first messages")
        first = by_pid[account.generator()]
        first.send(signal.SIGSTOP)
        until(lambda: account.generator() != first.pid, what="another generator")
        seen = account.totals().sent
        until(lambda: account.totals().sent > seen + 20, what="its messages")
        first.send(signal.SIGCONT)
        until(lambda: "generates no longer" in first.log(), what="the end of the first one's turn")
        second = by_pid[account.generator()]
        second.kill()
        until(lambda: account.generator() != second.pid, what="a third turn")
        seen = account.totals().sent
        until(lambda: account.totals().handled > seen, what="messages of the third turn")

        # A turn may end between sending and noting a number, which is then sent again, or between the check
        # and the sending of one more; a machine that is slow enough ends turns that nobody has touched.
        turns = sum(process.log().count(" generates\n") for process in processes)
        assert account.totals().copies <= 2 * (turns - 1)
        assert account.totals().doubled == 0
    finally:
        for process in processes:
            process.kill()
        account.close()


def _run(place: Path, server: ValkeyServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "REDIS_URL": server.url, "COLUMNS": "120"}
    command = [*DIE_WITH_PARENT, *COMMAND, *arguments]
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=TIMEOUT)
