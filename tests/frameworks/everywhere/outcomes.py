"""A pytest plugin that writes how each test ended, one line of JSON each: ``-p outcomes``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

FILE = "SINGLEFLIGHT_SUITE_OUTCOMES"


def pytest_configure(config: pytest.Config) -> None:
    """Listen where all reports arrive: not in the processes of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(Path(os.environ[FILE])), "singleflight-outcomes")


class Writer:
    """Appends each phase of each test to a file, so that a run that is cut short leaves what it knew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write one phase: of those that are only set-up or tear-down, only what went wrong."""
        if report.when == "call" or not report.passed:
            self._write(report.nodeid, report.outcome, report.when, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write a file that cannot be collected."""
        if report.failed:
            self._write(report.nodeid, "failed", "collect", report.longrepr)

    def _write(self, test: str, outcome: str, when: str, why: Any) -> None:
        crash = getattr(why, "reprcrash", None)
        message = str(crash.message if crash else why or "")
        line = {"test": test, "outcome": outcome, "when": when, "why": message[:2000]}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
