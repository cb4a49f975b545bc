"""A pytest fixture for tests of tasks: write ``pytest_plugins = ["singleflight.testing.plugin"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight.testing.recorder import FlightRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def flight_recorder() -> Iterator[FlightRecorder]:
    """A fresh store in memory and the list of what happens; `attach` an app to it for this test."""
    recorder = FlightRecorder()
    yield recorder
    recorder.detach()
