"""The witness must see what is there and claim no more."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.bodylog import BodyLog, gaps, of_key, overlaps, read, starts
from tests.support.commands import import_path

if TYPE_CHECKING:
    from pathlib import Path


def lines(*events: tuple[str, str, float]) -> list[str]:
    """Return log lines; a body named `a1` belongs to key `a` and run `run-a1`."""
    written = []
    for event, body, at in events:
        entry: dict[str, object] = {"event": event, "body": body, "at": at}
        if event == "start":
            entry |= {
                "key": body[0],
                "run": f"run-{body}",
                "attempt": 0,
                "fence": None,
                "host": "h",
                "pid": 1,
            }
        if event == "end":
            entry["how"] = "returned"
        written.append(json.dumps(entry))
    return written


def test_two_bodies_of_one_key_at_one_instant_overlap() -> None:
    """A body that starts before another of its key has ended is an overlap."""
    runs = read(lines(("start", "a1", 1.0), ("start", "a2", 2.0), ("end", "a1", 3.0), ("end", "a2", 4.0)))

    assert [(first.body, second.body) for first, second in overlaps(runs)] == [("a1", "a2")]


def test_a_long_body_overlaps_each_later_one_it_covers() -> None:
    """An overlap is found although another body lies between the two starts."""
    events = [("start", "a1", 1.0), ("start", "a2", 2.0), ("end", "a2", 3.0), ("start", "a3", 4.0)]
    runs = read(lines(*events, ("end", "a1", 5.0), ("end", "a3", 6.0)))

    assert [(first.body, second.body) for first, second in overlaps(runs)] == [("a1", "a2"), ("a1", "a3")]


def test_bodies_of_different_keys_never_overlap() -> None:
    """Two keys may run at once."""
    runs = read(lines(("start", "a1", 1.0), ("start", "b1", 2.0), ("end", "a1", 3.0), ("end", "b1", 4.0)))

    assert overlaps(runs) == []


def test_a_killed_body_counts_up_to_its_last_sign_of_life() -> None:
    """A body without an end overlaps what started before its last sign of life, and nothing later."""
    events = [("start", "a1", 1.0), ("start", "a2", 2.0), ("end", "a2", 2.5), ("alive", "a1", 3.0)]
    runs = read(lines(*events, ("start", "a3", 4.0)))

    assert [(first.body, second.body) for first, second in overlaps(runs)] == [("a1", "a2")]
    assert [run.how for run in runs] == [None, "returned", None]


def test_executions_are_found_by_key_and_by_run() -> None:
    """`of_key` and `starts` keep what belongs to a key or run, and `gaps` measures from start to start."""
    runs = read(lines(("start", "a1", 1.0), ("start", "b1", 2.0), ("start", "a2", 4.0)))

    assert [run.body for run in of_key(runs, "a")] == ["a1", "a2"]
    assert [run.body for run in starts(runs, "run-b1")] == ["b1"]
    assert gaps(of_key(runs, "a")) == [3.0]


def test_an_exception_is_written_as_the_end(tmp_path: Path) -> None:
    """A body that raises is ended in the log, and the exception goes on."""
    log = BodyLog(tmp_path / "log")

    with pytest.raises(KeyError), log.body("a", "run", attempt=2, fence=7):
        raise KeyError("lost")

    (run,) = log.runs()
    assert (run.key, run.run, run.attempt, run.fence, run.how) == ("a", "run", 2, 7, "KeyError")


def test_lines_of_many_processes_do_not_mix(tmp_path: Path) -> None:
    """Four processes write as fast as they can, and every line can be read."""
    code = (
        "import sys; from tests.support.bodylog import BodyLog\n"
        "for n in range(200):\n"
        "    with BodyLog(sys.argv[1]).body('k' * 300, str(n)): pass\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    writers = [subprocess.Popen(command, env=import_path(tmp_path)) for _ in range(4)]

    assert [writer.wait(timeout=15) for writer in writers] == [0, 0, 0, 0]
    assert len(BodyLog(tmp_path / "log").runs()) == 800
