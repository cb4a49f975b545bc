"""One line for all who wait for a key: not yet, for a deferred run polls beside those who listen."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from singleflight import Singleton, lease
from singleflight.keys import lease_key
from tests.support.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIED = 10.0
"""Seconds; in one line the run would have its turn within the first one."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run a worker."""
    with Rig(tmp_path_factory.mktemp("starving")) as rig:
        yield rig.start(1, concurrency=1)


@pytest.mark.xfail(
    strict=True,
    reason="a deferred run polls, and meets those who listen at work; until all who wait stand in one line",
)
def test_a_deferred_run_has_its_turn_between_those_who_listen(rig: Rig) -> None:
    """Two threads that take turns with `lease(wait=None)` leave the third turn to a run that waits."""
    stop = threading.Event()

    def hold() -> None:
        while not stop.is_set():
            with lease(rig.store_url, "probe", wait=None):
                time.sleep(0.3)

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    options = Singleton(by=(), on_conflict="defer")
    assert lease_key("singleflight", "probe") in rig.records()
    try:
        rig.send("probe", "starving", {"singleton": options})
        rig.wait_start("starving", timeout=TRIED)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
