"""The Celery app that ``-A`` names."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Any

from singleflight.cli.output import Failure
from singleflight.errors import SingleflightError


def load(name: str) -> Any:
    """Import a Celery app, as `celery -A` does.

    Raises:
        Failure: if it cannot be found.
    """
    try:
        from celery.app.utils import find_app  # noqa: PLC0415 - not everybody has Celery
    except ModuleNotFoundError as error:
        raise Failure('Celery is not installed; type: pip install "singleflight-tasks[celery]"') from error

    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as Celery does
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # ours are findings, and said as such
            app = find_app(name)
            app.loader.import_default_modules()
            app.finalize()
    except SingleflightError:
        raise
    except Exception as error:
        raise Failure(f"cannot load the app {name}: {_cause(error)}") from error
    return app


def _cause(error: Exception) -> str:
    """Return what a user's module raised, and where: worth more than a traceback through Celery."""
    here = os.getcwd()  # noqa: PTH109 - as above
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    where = f" at {os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}{where}: {error}"
