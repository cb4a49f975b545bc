"""Skipping, joining and publishing where bodies run in threads, in greenlets or in the worker itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight import Singleton
from singleflight.lease import Reason
from tests.integration import publish_app
from tests.support.bodylog import overlaps
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

POOLS = {"threads": 1, "gevent": 1, "solo": 2}
"""How many workers each pool needs for two runs at a time."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run the workers of all pools, with a queue for each pool."""
    with Rig(tmp_path_factory.mktemp("pools")) as rig:
        workers = [
            rig.worker(ready=False, pool=pool, concurrency=4, args=["-I", publish_app.__name__, "-Q", pool])
            for pool, count in POOLS.items()
            for _ in range(count)
        ]
        for worker in workers:
            worker.ready()
        yield rig
        assert not rig.endless_keys()


@pytest.mark.parametrize("pool", POOLS)
def test_duplicates_end_in_each_pool_as_in_prefork(rig: Rig, pool: str) -> None:
    """One is skipped, one joins, one is not even sent; and afterwards the key is free."""
    queue = {"queue": pool}
    gates = {name: rig.folder / f"{pool}-{name}" for name in ("late", "join", "once")}
    keys = {name: f"{pool}-{name}" for name in gates}

    first = rig.send("late", keys["late"], queue, gate=str(gates["late"]))
    rig.wait_start(keys["late"])
    assert rig.states([rig.send("late", keys["late"], queue)]) == ["REVOKED"]
    gates["late"].touch()
    assert first.get(timeout=30) == first.id

    first = rig.send("join", keys["join"], queue, gate=str(gates["join"]))
    rig.wait_start(keys["join"])
    other = rig.send("join", keys["join"], queue)
    until(lambda: rig.said(f"{other.id} deferred"), what="the duplicate's deferral")
    gates["join"].touch()
    assert [first.get(timeout=30), other.get(timeout=30)] == [first.id, first.id]

    first = rig.send("once", keys["once"], queue, gate=str(gates["once"]))
    rig.wait_start(keys["once"])
    other = rig.send("once", keys["once"], queue)
    assert (other.id, other.busy.reason) == (first.id, Reason.RUNNING)
    gates["once"].touch()
    assert other.get(timeout=30) == first.id
    fresh = rig.send("once", keys["once"], queue)
    assert (fresh.duplicate, fresh.get(timeout=30)) == (False, fresh.id)

    assert [len(rig.runs(key)) for key in keys.values()] == [1, 1, 2]
    assert not any(overlaps(rig.runs(key)) for key in keys.values())


def test_a_lease_that_is_lost_after_the_body_spoils_no_result(rig: Rig) -> None:
    """on_lost="abort" in a thread strikes bodies only: while the result is being stored it does nothing."""
    options = {"queue": "threads", "singleton": Singleton(on_lost="abort")}
    result = rig.send("probe", "stored", options, then="linger")
    until((rig.folder / "storing-stored").exists, what="the end of the body")
    rig.evict(result.id)
    until(lambda: rig.said(f"{result.id} lost"), what="the loss of the lease")
    (rig.folder / "stored-gate").touch()

    assert result.get(timeout=30) == "stored"
    assert [run.how for run in rig.runs("stored")] == ["returned"]
