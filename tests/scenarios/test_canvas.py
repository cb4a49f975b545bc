"""Scenarios 101 to 109: troubles of users with duplicates in chains, chords and signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain, chord, signature

from singleflight import Skipped
from singleflight.celery import install
from singleflight.leases.claiming import Request, new_token
from singleflight.stores.memory import MemoryStore
from singleflight.tasks.delivery import Delivery
from tests.integration import canvas_app, worker_app
from tests.support.bodylog import overlaps
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

INCLUDE = ["-I", canvas_app.__name__]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run two workers for all scenarios."""
    with Rig(tmp_path_factory.mktemp("flows")) as rig:
        yield rig.start(2, concurrency=4, args=INCLUDE)
        assert not rig.endless_keys()


@pytest.mark.parametrize("mode", ["skip", "defer"])
def test_scenario_101_two_chains_that_begin_with_the_same_task(rig: Rig, mode: str) -> None:
    """Deferred, both go to their end; skipped, the second one stops visibly and nothing of it is pending."""
    task, step = rig.app.tasks[f"canvas.{mode}"], rig.app.tasks["canvas.step"]
    gate = rig.folder / f"101-{mode}"
    first, second = (
        chain(task.si(f"101-{mode}", gate=str(gate)), step.si(f"101-{mode}-{n}")).apply_async()
        for n in (1, 2)
    )
    rig.wait_start(f"101-{mode}")
    said = "skipped" if mode == "skip" else "deferred"
    until(
        lambda: any(rig.said(f"{r.parent.id} {said}") for r in (first, second)), what="the duplicate's fate"
    )
    gate.touch()
    states = rig.states([first.parent, first, second.parent, second])

    both = [["SUCCESS", "SUCCESS"], ["SUCCESS", "SUCCESS"] if mode == "defer" else ["REVOKED", "REVOKED"]]
    assert sorted([states[:2], states[2:]]) == sorted(both)
    assert not overlaps(rig.runs(f"101-{mode}"))


def test_scenario_103_a_chord_whose_header_is_deferred(tmp_path: Any) -> None:
    """On a backend where an unlocking task polls: three runs in turn, the body once, and the polling ends."""
    with Rig(tmp_path) as rig:
        backend = f"db+sqlite:///{tmp_path}/results.db"
        rig.start(1, concurrency=4, args=INCLUDE, env={"CELERY_RESULT_BACKEND": backend})
        app = worker_app.make_app(rig.broker.url, backend, rig.store_url)
        task, collect = app.tasks["canvas.defer"], app.tasks["canvas.collect"]
        chord([task.si("103", seconds=1.0)] * 3, collect.s("103-body")).apply_async()
        app.close()
        rig.wait_start("103-body", timeout=60)
        until(rig.broker_is_empty, 30, "the end of all polling")

        assert len(rig.runs("103")) == 3
        assert not overlaps(rig.runs("103"))
        assert len(rig.runs("103-body")) == 1


def test_scenario_106_a_skip_in_an_eager_chain_is_as_in_a_worker(rig: Rig) -> None:
    """The rest does not run and the end is `Skipped`, whether by `apply()` or through a worker."""
    app, after = Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=False), []
    store = MemoryStore()
    install(app, store, eager=True)

    @app.task(shared=False, name="106", singleton=True)
    def duplicate() -> None:
        after.append("duplicate")

    @app.task(shared=False, name="106-after")
    def rest() -> None:
        after.append("rest")

    task = app.tasks["106"]
    asked = app.singleflight.request(task, app.singleflight.policy(task), Delivery("", 0, "", (), {}))
    app.singleflight.leases.claim(Request(asked.key, "106", "holder", new_token()))
    with pytest.raises(Skipped):
        chain(duplicate.si(), rest.si()).apply().get()
    app.close()
    gate, task = rig.folder / "106", rig.app.tasks["canvas.skip"]
    task.delay("106", gate=str(gate))
    rig.wait_start("106")
    with pytest.raises(Skipped):
        chain(task.si("106"), rig.app.tasks["canvas.step"].si("106-after")).apply_async().get(timeout=30)
    gate.touch()

    assert after == []
    assert not rig.runs("106-after")


def test_scenario_108_the_rule_does_not_depend_on_how_a_signature_was_made(rig: Rig) -> None:
    """By name, of the app, cloned, frozen: one start, all others skipped."""
    gate = rig.folder / "108"
    how = {"args": ("108",), "kwargs": {"gate": str(gate)}}
    frozen = rig.app.signature("canvas.skip", **how)
    frozen.freeze()
    made = [
        signature("canvas.skip", app=rig.app, **how),
        rig.app.signature("canvas.skip", **how),
        rig.app.signature("canvas.skip", **how).clone(),
        frozen,
        rig.app.tasks["canvas.skip"].s("108", gate=str(gate)),
    ]
    first = made[0].apply_async()
    rig.wait_start("108")
    results = [first, *(one.apply_async() for one in made[1:])]
    until(lambda: sum(result.state == "REVOKED" for result in results) == 4, 30, "four skips")
    gate.touch()

    assert sorted(rig.states(results)) == ["REVOKED"] * 4 + ["SUCCESS"]
    assert len(rig.runs("108")) == 1


def test_scenario_109_the_key_is_made_when_the_arguments_are_complete(rig: Rig) -> None:
    """A step that gets its key from the step before: one start, one duplicate, and a free key afterwards."""
    gate, task, load = rig.folder / "109", rig.app.tasks["canvas.skip"], rig.app.tasks["canvas.collect"]
    flows = [chain(load.si("109", f"109-load-{n}"), task.s(gate=str(gate))).apply_async() for n in range(2)]
    until(lambda: sum(flow.state == "REVOKED" for flow in flows) == 1, 30, "a duplicate")
    gate.touch()

    assert sorted(rig.states(flows)) == ["REVOKED", "SUCCESS"]
    assert len(rig.runs("109")) == 1
    assert task.delay("109").get(timeout=30) == "109"
