"""Two schedulers in different time zones send each planned occurrence, and it runs once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.dramatiq_actors import BROKER
from tests.support.bodylog import of_key
from tests.support.child import Child
from tests.support.commands import import_path
from tests.support.dramatiq_nodes import Cluster
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "tests.integration.dramatiq_schedule"
ZONES = ("Etc/UTC", "Asia/Tokyo")
SCHEDULERS = {
    "periodiq": (["-c", "from periodiq import entrypoint; entrypoint()", MODULE], "Scheduling ", 1),
    "apscheduler": (["-m", MODULE], "scheduling", 3),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_each_occurrence_runs_once_though_two_schedulers_send_it(tmp_path: Path, kind: str) -> None:
    """Both schedulers send; the messages of one instant are one run, and the others are dropped."""
    arguments, ready, ticks = SCHEDULERS[kind]
    key = {"periodiq": "minutely", "apscheduler": "ticking"}[kind]
    schedulers: list[Child] = []
    with Cluster(tmp_path) as cluster:
        cluster.start(2, module=MODULE)
        try:
            for zone in ZONES:
                env = {BROKER: cluster.server.url, "TZ": zone, **import_path(tmp_path)}
                log = tmp_path / f"{zone.replace('/', '-')}.log"
                schedulers.append(Child([sys.executable, *arguments], log=log, ready=ready, env=env))
            for scheduler in schedulers:
                scheduler.wait_ready()
            until(lambda: cluster.logs().count("dropped, key") >= ticks, 90, "dropped messages")
        finally:
            for scheduler in schedulers:
                scheduler.kill()
        until(cluster.idle, 30, "the end of all messages")

        occurrences = [run.run for run in of_key(cluster.log.runs(), key)]
        assert len(occurrences) == len(set(occurrences)) >= 1
        assert all(scheduler.log().count(ready) for scheduler in schedulers)
