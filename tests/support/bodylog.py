"""The witness: task bodies write what they do to one file, and outcomes are judged on that alone.

Each line is one JSON object, written by one `write` to a file opened with O_APPEND, so lines of different
processes never mix. Times come from the machine's monotonic clock, which all its processes share and which
nobody can step. A body that works writes a sign of life every few milliseconds; of one that was killed the
last sign is known, and no judgement claims that it ran any longer.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VARIABLE = "BODY_LOG"
"""Environment variable that names the file to children."""
SIGN_OF_LIFE = 0.02
"""Seconds between two signs of life of a working body."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a body, as its own lines tell it."""

    body: str
    """Names this execution; made afresh for each."""
    key: str
    run: str
    attempt: int
    fence: int | None
    host: str
    pid: int
    started: float
    last_seen: float
    """The end, or else the last sign of life. Monotonic seconds, like `started`."""
    how: str | None
    """`returned`, or the name of the exception that ended it; None if no end was ever written."""


class BodyLog:
    """One append-only file, written by many processes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def from_environment(cls) -> BodyLog:
        """Return the log that the test handed to this process."""
        return cls(os.environ[VARIABLE])

    @contextmanager
    def body(self, key: str, run: str, *, attempt: int = 0, fence: int | None = None) -> Iterator[Working]:
        """Write the start of a body, and its end however it ends (unless it is killed)."""
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        facts = {"key": key, "run": run, "attempt": attempt, "fence": fence}
        self._write("start", name, **facts, host=socket.gethostname(), pid=os.getpid())
        how = "returned"
        try:
            yield Working(self, name)
        except BaseException as error:
            how = type(error).__name__
            raise
        finally:
            self._write("end", name, how=how)

    def runs(self) -> list[Run]:
        """Read all executions so far, by start."""
        # A torn last line cannot happen, but a reader may come before the file.
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return read(text.splitlines())

    def _write(self, event: str, body: str, **facts: object) -> None:
        line = json.dumps({"event": event, "body": body, "at": time.monotonic(), **facts}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


class Working:
    """A body between its start and its end."""

    def __init__(self, log: BodyLog, name: str) -> None:
        self._log = log
        self._name = name

    def alive(self) -> None:
        """Write a sign of life."""
        self._log._write("alive", self._name)

    def work(self, seconds: float) -> None:
        """Be busy for so long, with signs of life."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SIGN_OF_LIFE))
            self.alive()

    def work_until(self, gate: Path, timeout: float = 60.0) -> None:
        """Be busy until the file `gate` exists, with signs of life; at most `timeout` seconds."""
        end = time.monotonic() + timeout
        while not gate.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"nobody opened {gate.name} within {timeout:g} s")
            self.work(SIGN_OF_LIFE)


def read(lines: Iterable[str]) -> list[Run]:
    """Turn the lines of a log into executions, by start."""
    found: dict[str, Run] = {}
    for line in lines:
        entry = json.loads(line)
        event, body, at = entry.pop("event"), entry.pop("body"), entry.pop("at")
        if event == "start":
            found[body] = Run(body=body, started=at, last_seen=at, how=None, **entry)
        else:
            found[body] = replace(found[body], last_seen=at, how=entry.get("how"))
    return sorted(found.values(), key=lambda run: run.started)


def of_key(runs: Iterable[Run], key: str) -> list[Run]:
    """Keep the executions of one key."""
    return [run for run in runs if run.key == key]


def starts(runs: Iterable[Run], run_id: str) -> list[Run]:
    """Keep the executions of one run: more than one is a retry, a redelivery, or a bug."""
    return [run for run in runs if run.run == run_id]


def overlaps(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Return every pair of executions of one key that certainly ran at the same instant."""
    pairs: list[tuple[Run, Run]] = []
    earlier: list[Run] = []
    for run in sorted(runs, key=lambda run: run.started):
        pairs += [(other, run) for other in earlier if other.key == run.key and other.last_seen > run.started]
        earlier.append(run)
    return pairs


def gaps(runs: Iterable[Run]) -> list[float]:
    """Return the seconds between one start and the next."""
    times = sorted(run.started for run in runs)
    return [later - earlier for earlier, later in pairwise(times)]
