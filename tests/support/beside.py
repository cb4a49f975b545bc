"""Packages that are tried beside ours, and that every start of Celery or redis-py would take longer for."""

from __future__ import annotations

import importlib.util
import os

import pytest

PROMISED = "SINGLEFLIGHT_BESIDE"
"""Set where they are installed for certain."""


def beside(package: str) -> None:
    """Skip if a package is missing, or fail where it must be there: in tox's environment ``beside``."""
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is part of
        found = False
    if not found:
        message = f"{package} is not installed here; type: tox -e beside"
        if os.environ.get(PROMISED):
            pytest.fail(message)
        pytest.skip(message)
