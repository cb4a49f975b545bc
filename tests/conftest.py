"""What holds for every test: a time limit by kind, and nothing left behind."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from celery.backends.asynchronous import AsyncBackendMixin

from tests.support.child import MARK, survivors
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = {"unit": 20}
OTHERWISE = 120
TESTS = Path(__file__).parent


def _find_demo() -> None:
    """Let tests import the demo, which no wheel has; a path to the root would hide the wheel under test."""
    place = TESTS.parent / "demo/__init__.py"
    spec = importlib.util.spec_from_file_location(
        "demo", place, submodule_search_locations=[str(place.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["demo"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["demo"])


_find_demo()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the time limit of its folder, unless it has its own."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            folder = item.path.relative_to(TESTS).parts[0]
            item.add_marker(pytest.mark.timeout(SECONDS.get(folder, OTHERWISE)))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Keep how many tests ran, not of a second try: `.ci/run` says how many of them needed one."""
    del exitstatus
    if config.cache is not None and not config.option.lf:
        ran = sum(len(terminalreporter.stats.get(how, ())) for how in ("passed", "failed", "xfailed"))
        config.cache.set("singleflight/count", ran)


@pytest.fixture(scope="session", autouse=True)
def signals_are_heard() -> None:
    """Children inherit ignored signals (from nohup, or ``&`` in a script), and what those do is tested."""
    usual = {signal.SIGINT: signal.default_int_handler}
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual.get(number, signal.SIG_DFL))


@pytest.fixture(scope="session", autouse=True)
def results_are_forgotten() -> Iterator[None]:
    """Let no result of Celery's unsubscribe when it is collected.

    That takes twenty seconds if its server is gone, and has no end if it happens within another's
    unsubscription, whose lock before Celery 5.5 it waits for.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncBackendMixin, "remove_pending_result", lambda _, result: result)
        yield
        gc.collect()  # those of the last tests, if they are in circles


@pytest.fixture(scope="session", autouse=True)
def no_child_survives() -> Iterator[None]:
    """Fail the run, and end what is left, if a process that a test started outlives it."""
    mark = os.environ[MARK] = uuid.uuid4().hex
    yield
    try:
        # Those that were killed a moment ago may still be on their way.
        until(lambda: not survivors(mark), 5, "the end of all children")
    except AssertionError:
        left = survivors(mark)
        names = [f"{process.pid} {process.cmdline()}" for process in left]
        for process in left:
            process.kill()
        pytest.fail(f"processes outlived the tests: {names}")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Return the file that lets bodies end; it exists after the test, so that none goes on."""
    gate = tmp_path / "gate"
    yield gate
    gate.touch()
