"""Run one suite in one mode, and once more what failed: a busy machine is no difference."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.child import DIE_WITH_PARENT
from tests.support.rabbit import DEBIAN, RabbitServer
from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from tests.frameworks.sources import Release
    from tests.frameworks.suites import Suite

EVERYWHERE = Path(__file__).parent / "everywhere"
NOTHING_LISTENS = "9"
"""The port for `discard`: where RabbitMQ would be asked if it is not there."""
TRIES = 3
"""A test has failed if it failed this often."""
RETRY_LIMIT = 900
"""Seconds for one more try of all that failed; what it does not reach stays failed."""


@dataclass(frozen=True)
class Result:
    """How each test of a run ended: ``passed``, ``failed``, ``skipped`` or ``xfailed``, and why it failed."""

    outcomes: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    again: dict[str, str] = field(default_factory=dict)
    """Those that failed at first and passed when they were run again, with what they said."""
    ended: str = ""
    """Empty, or why the run is not whole."""

    @property
    def failed(self) -> list[str]:
        """The tests that failed."""
        return [test for test, outcome in self.outcomes.items() if outcome == "failed"]

    def count(self, outcome: str) -> int:
        """Return how many tests ended so."""
        return sum(1 for each in self.outcomes.values() if each == outcome)


def load(path: Path) -> Result | None:
    """Read what `run` has kept; None if there is nothing."""
    return Result(**json.loads(path.read_text())) if path.exists() else None


def kept(release: Release, suite: Suite, mode: str) -> Path:
    """Return where a run's result lies."""
    return release.folder / "results" / f"{suite.name}-{mode}.json"


def run(release: Release, suite: Suite, mode: str) -> Result:
    """Run a suite in a mode on servers of its own, keep the result and return it."""
    path = kept(release, suite, mode)
    path.parent.mkdir(exist_ok=True)
    with ExitStack() as servers:
        environment = {**_inherited(), **_environment(release, suite, mode, servers)}
        result = _pytest(release, suite, environment, path.with_suffix(".log"), suite.arguments)
        # What fails plain too makes no difference, and may take long to fail.
        plain = None if mode == "plain" else load(kept(release, suite, "plain"))
        for _ in range(TRIES - 1):
            failed = [test for test in result.failed if plain is None or plain.outcomes.get(test) == "passed"]
            if not failed or result.ended:
                break
            options = _without_files(suite.arguments)
            log = path.with_suffix(".again.log")
            retried = _pytest(release, suite, environment, log, (*failed, *options), RETRY_LIMIT)
            result = _merge(result, retried)
    path.write_text(json.dumps(asdict(result), indent=1))
    return result


def _inherited() -> dict[str, str]:
    kept = ("HOME", "LANG", "TMPDIR", "CI")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _environment(release: Release, suite: Suite, mode: str, servers: ExitStack) -> dict[str, str]:
    """Return the variables of a run, and start the servers that they name."""
    # First the environment's own: a worker that reloads itself starts the `python` that it finds.
    path = os.pathsep.join([str(release.python.parent), os.environ.get("PATH", "")])
    variables = {
        "PATH": path,
        "PYTHONPATH": str(EVERYWHERE),
        "SINGLEFLIGHT_SUITE_FRAMEWORK": release.framework,
        "SINGLEFLIGHT_SUITE_MODE": mode,
    }
    if suite.store == "memory":
        variables["SINGLEFLIGHT_SUITE_STORE"] = "memory://"
    if suite.redis:
        server = servers.enter_context(ValkeyServer())
        if suite.redis == "variables":
            host, port = "127.0.0.1", str(server.port)
            variables.update(
                TEST_BROKER=server.url, TEST_BACKEND=server.url, REDIS_HOST=host, REDIS_PORT=port
            )
        else:
            variables["SINGLEFLIGHT_SUITE_REDIS_PORT"] = str(server.port)
            variables["SINGLEFLIGHT_SUITE_STORE"] = server.url
            variables["SINGLEFLIGHT_SUITE_RABBITMQ_PORT"] = NOTHING_LISTENS
    if suite.rabbitmq:
        try:
            rabbit = servers.enter_context(RabbitServer())
        except (pytest.skip.Exception, pytest.fail.Exception) as error:
            print(f"  {error}: its tests are skipped", flush=True)
        else:
            variables.update(rabbit.environment)  # for `rabbitmqctl`, which must reach no other server
            variables["PATH"] = os.pathsep.join([str(DEBIAN.parent), path])
            variables["SINGLEFLIGHT_SUITE_RABBITMQ"] = "yes"
            variables["SINGLEFLIGHT_SUITE_RABBITMQ_PORT"] = str(rabbit.port)
    return variables


def _without_files(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return pytest's arguments for single tests: without the folder, and in one process."""
    return tuple(argument for argument in arguments[1:] if argument not in ("-n", "2", "--dist", "loadfile"))


def _pytest(
    release: Release,
    suite: Suite,
    environment: dict[str, str],
    log: Path,
    arguments: tuple[str, ...],
    limit: float | None = None,
) -> Result:
    outcomes = log.with_suffix(".jsonl")
    outcomes.unlink(missing_ok=True)
    command = [
        *DIE_WITH_PARENT, str(release.python), "-m", "pytest", "-p", "outcomes", "-p", "no:cacheprovider",
        "-q", "--tb=short", *arguments,
    ]  # fmt: skip
    variables = {**environment, "SINGLEFLIGHT_SUITE_OUTCOMES": str(outcomes)}
    ended = ""
    with log.open("w") as output:
        child = subprocess.Popen(
            command, cwd=release.sources, env=variables, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(timeout=limit or suite.limit)
            if code not in (0, 1):
                ended = f"pytest ended with {code}; see {log}"
        except subprocess.TimeoutExpired:
            ended = f"ended after {limit or suite.limit:g} s; see {log}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its own group: nothing of the suite outlives it
            child.wait()
    return _read(outcomes, ended)


def _read(path: Path, ended: str) -> Result:
    result = Result(ended=ended)
    lines = path.read_text().splitlines() if path.exists() else []
    for line in map(json.loads, lines):
        test, outcome = line["test"], line["outcome"]
        if outcome == "rerun":
            continue  # the suite's own second try: the next line says how it ended
        if result.outcomes.get(test) != "failed":
            result.outcomes[test] = outcome
        if outcome == "failed":
            result.why.setdefault(test, line["why"])
    return result


def _merge(first: Result, retried: Result) -> Result:
    """Return a result in which what passed at last has passed."""
    better = {test for test, outcome in retried.outcomes.items() if outcome != "failed"}
    return Result(
        outcomes={**first.outcomes, **retried.outcomes},
        why={test: text for test, text in first.why.items() if test not in better},
        again={**first.again, **{test: first.why.get(test, "") for test in better}},
        ended=first.ended,
    )


def behave() -> None:
    """Give way to everybody else on this machine, and let SIGTERM end the servers too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with suppress(OSError):
        os.nice(15 - os.nice(0))
