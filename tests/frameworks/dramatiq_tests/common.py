"""What Dramatiq's tests import from a module that its released sources lack; written anew for them."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pika
import pytest
from dramatiq import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dramatiq import Broker

RABBITMQ_USERNAME = RABBITMQ_PASSWORD = "guest"  # what every new server has
RABBITMQ_CREDENTIALS = pika.PlainCredentials(RABBITMQ_USERNAME, RABBITMQ_PASSWORD)

skip_in_ci = pytest.mark.skipif("CI" in os.environ, reason="depends on time too much for CI")
skip_on_pypy = pytest.mark.skipif(platform.python_implementation() == "PyPy", reason="not on PyPy")
skip_on_windows = pytest.mark.skipif(sys.platform == "win32", reason="not on Windows")
skip_unless_rabbit_mq = pytest.mark.skipif(
    "SINGLEFLIGHT_SUITE_RABBITMQ" not in os.environ, reason="no RabbitMQ on this machine"
)


@contextmanager
def worker(broker: Broker, **options: Any) -> Iterator[Worker]:
    """Run a worker of this process; keywords are `Worker`'s."""
    started = Worker(broker, **options)
    started.start()
    try:
        yield started
    finally:
        started.stop()
