"""Two replicas of dramatiq-crontab in different time zones send each planned minute, and it runs once."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.dramatiq_actors import BROKER
from tests.support.bodylog import of_key
from tests.support.child import Child
from tests.support.commands import import_path
from tests.support.crowd import wrong_clock
from tests.support.dramatiq_nodes import Cluster
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "tests.integration.crontab_schedule"
READY = "Starting scheduler"
ZONES = ("Etc/UTC", "Asia/Tokyo")
NOTICE = 8
"""Seconds that both schedulers have to start in, before a minute begins by their clocks."""

pytest.importorskip(
    "dramatiq_crontab", reason="dramatiq-crontab needs Dramatiq 1.18: tox installs it in `newest`"
)


def test_each_minute_runs_once_though_two_replicas_of_dramatiq_crontab_send_it(tmp_path: Path) -> None:
    """Without its own lock every replica sends; the messages of one minute are one run."""
    schedulers: list[Child] = []
    with Cluster(tmp_path) as cluster:
        cluster.start(2, module=MODULE)
        try:
            soon = wrong_clock(f"{60 - NOTICE - time.time() % 60:+.0f}s")  # instead of waiting for a minute
            for zone in ZONES:
                env = {BROKER: cluster.server.url, "TZ": zone, **soon, **import_path(tmp_path)}
                log = tmp_path / f"{zone.replace('/', '-')}.log"
                schedulers.append(Child([sys.executable, "-m", MODULE], log=log, ready=READY, env=env))
            for scheduler in schedulers:
                scheduler.wait_ready()
            until(lambda: "dropped, key" in cluster.logs(), 90, "a dropped message")
            assert all(scheduler.alive for scheduler in schedulers)
        finally:
            for scheduler in schedulers:
                scheduler.kill()
        until(cluster.idle, 30, "the end of all messages")

        minutes = [run.run for run in of_key(cluster.log.runs(), "minutely")]
        assert len(minutes) == len(set(minutes)) >= 1
