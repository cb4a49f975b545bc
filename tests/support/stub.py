"""Dramatiq's stub broker and a worker in the test's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dramatiq

if TYPE_CHECKING:
    from dramatiq.brokers.stub import StubBroker


def work_off(broker: StubBroker) -> None:
    """Let a worker run all messages that there are."""
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    try:
        broker.join("default", fail_fast=False, timeout=15_000)
        worker.join()
    finally:
        worker.stop(timeout=5_000)
