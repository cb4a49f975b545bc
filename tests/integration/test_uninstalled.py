"""Tasks that ask for leases on an app for which install() was never called."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.commands import import_path
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.nodes import WorkerNode

APP = "tests.integration.uninstalled_app"
SAID = "unprotected: declared with singleton=, but the app 'forgot' has no leases"


def test_a_worker_says_at_its_start_that_its_app_has_no_leases(
    start_worker: Callable[..., WorkerNode],
) -> None:
    """One warning names the tasks and what to call."""
    worker = start_worker(app=APP, concurrency=1)
    until(lambda: SAID in worker.logs(), 30, "the warning")

    assert "call singleflight.celery.install(app)" in worker.logs()


def test_a_publisher_hears_at_its_first_call(environment: dict[str, str], tmp_path: Path) -> None:
    """It is said once, by a program that has set up no logging."""
    run = subprocess.run(
        [sys.executable, "-m", APP],
        env={**os.environ, **environment, **import_path(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert run.stderr.count(SAID) == 1
