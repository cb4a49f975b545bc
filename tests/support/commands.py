"""How children of the tests are called; light, because every child imports it."""

from __future__ import annotations

import sys
from pathlib import Path

APP = "tests.integration.app"
"""The app of the integration tests, as `celery -A` takes it."""
SCHEDULE = "BEAT_SCHEDULE"
"""Environment variable with the app's beat schedule as JSON."""
TESTS = Path(__file__).resolve().parents[1]


def celery_command(app: str) -> list[str]:
    """Return how a child calls Celery."""
    return [sys.executable, "-m", "celery", "-A", app]


def import_path(folder: Path) -> dict[str, str]:
    """Return the environment in which children import `tests`, and singleflight as it is installed.

    The project's own folder must not be on their path: it would hide the installed package.
    """
    place = folder / "path"
    place.mkdir(exist_ok=True)
    link = place / "tests"
    if not link.is_symlink():
        link.symlink_to(TESTS, target_is_directory=True)
    return {"PYTHONPATH": str(place)}
