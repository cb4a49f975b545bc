"""The example app, copied elsewhere and run by the very commands of its README."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.child import Child
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "celery_app"
NOT_RUN = ("pip install", "docker run")
"""What the tests' own environment and server stand in for."""
READY = {"worker": " ready.", "beat": "beat: Starting..."}


def commands() -> list[str]:
    """Return every command line of the README."""
    blocks = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith(NOT_RUN)]


class Work(NamedTuple):
    """One body, as it wrote itself down."""

    subject: str
    fence: int
    pid: int
    started: float
    ended: float | None


def overlapping(bodies: list[Work]) -> bool:
    """Say whether one began before the one before it had ended."""
    return any(one.ended is None or two.started < one.ended for one, two in pairwise(bodies))


class Shop:
    """A copy of the example, its processes, and what their bodies wrote."""

    def __init__(self, folder: Path, server: ValkeyServer) -> None:
        self.folder = folder / "shop"
        shutil.copytree(EXAMPLE, self.folder, ignore=shutil.ignore_patterns("__pycache__", "*.db"))
        # As an activated environment does it: `celery` and `python` are this environment's.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.env = {**os.environ, "PATH": path, "REDIS_URL": server.url}
        self.children: list[Child] = []

    def start(self, command: str) -> Child:
        """Start a worker or a beat by its command line."""
        argv = shlex.split(command)
        log = self.folder / f"{len(self.children)}.log"
        self.children.append(Child(argv, log=log, ready=READY[argv[3]], env=self.env))
        return self.children[-1]

    def run(self, command: str) -> str:
        """Run a command to its end and return what it printed."""
        done = subprocess.run(
            shlex.split(command), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def work(self, task: str) -> list[Work]:
        """Return every body of a task, by start."""
        with closing(sqlite3.connect(self.folder / "shop.db", timeout=30)) as rows:
            query = "SELECT subject, fence, pid, started, ended FROM work WHERE task = ? ORDER BY started"
            return [Work(*row) for row in rows.execute(query, (task,))]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Run a copy of the example's workers and beats."""
    with ValkeyServer() as server:
        shop = Shop(tmp_path, server)
        try:
            for command in commands():
                if command.startswith("celery"):
                    shop.start(command)
            for child in shop.children:
                child.wait_ready()
            yield shop
        finally:
            for child in shop.children:
                child.kill()


def test_the_readme_names_two_workers_two_beats_and_the_scripts() -> None:
    """What the other tests run is all that the README tells a user to type."""
    kinds = [" ".join(shlex.split(command)[:4]) for command in commands()]

    worker, beat = "celery -A tasks worker", "celery -A tasks beat"
    assert kinds == [worker, worker, beat, beat, "python press.py", "python shop.py"]


def test_the_buttons_do_what_the_readme_says(shop: Shop) -> None:
    """Of ten clicks some run and the others are skipped, all uploads run in turn, and both chains go on."""
    printed = shop.run("python press.py").splitlines()

    clicks = [line for line in printed if line.startswith("recalculate(7): ")]
    assert len(clicks) == 10
    ran = [line for line in clicks if line == "recalculate(7): ran: 7"]
    assert all(
        line.startswith("recalculate(7): skipped: duplicate of run") for line in clicks if line not in ran
    )
    recalculated = shop.work("recalculate")
    assert 2 <= len(ran) == len(recalculated) < 10
    assert not overlapping(recalculated)
    imported = shop.work("import_prices")
    assert sorted(subject for subject, *_ in imported) == ["prices-1.csv", "prices-2.csv", "prices-3.csv"]
    assert not overlapping(imported)
    assert sum(line.startswith("import_prices: ran: ") for line in printed) == 3
    rates = [line.removeprefix("fetch_rates | publish_prices: ran: ") for line in printed[-2:]]
    assert sorted(rates) == ["prices published, rates fetched", "prices published, rates fresh enough"]
    assert len(shop.work("fetch_rates")) == 1
    assert "import_prices prices-1.csv" in shop.run("python shop.py")


def test_reports_survive_a_killed_beat_and_a_killed_process(shop: Shop) -> None:
    """Ticks go on when a beat dies; a report whose process dies is done again, and none ever overlaps."""
    first, second, beat, _other = shop.children
    until(lambda: "tasks.nightly_report: run" in first.log() + second.log(), 60, "a tick that is skipped")
    beat.kill()
    seen = len(shop.work("nightly_report"))
    until(lambda: len(shop.work("nightly_report")) > seen, 60, "a report after a beat was killed")

    killed = shop.work("nightly_report")[-1]
    assert killed.ended is None
    os.kill(killed.pid, signal.SIGKILL)
    died = time.time()

    def later() -> list[Work]:
        return [work for work in shop.work("nightly_report") if work.started > killed.started and work.ended]

    done = until(lambda: len(found := later()) >= 2 and found, 60, "two reports after the killed one")
    assert done[0].started > died
    assert done[0].fence > killed.fence
    assert not overlapping([work for work in shop.work("nightly_report")[:-1] if work != killed])
    assert "WorkerLostError" in first.log() + second.log()
