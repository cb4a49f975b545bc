"""Messages that somebody has forged, garbled or forwarded, through real workers: what they cannot do."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Singleton
from singleflight.key_rules import rule_of
from singleflight.tasks.message import Carried
from tests.integration.worker_app import probe
from tests.support.bodylog import overlaps
from tests.support.forged import Forger
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HUGE = 10**400
MARKS = {"_singleflight_entered": True, "_singleflight_again": 3e11, "_singleflight_keeps_slot": True}
TOKEN = {"singleflight_token": "mine", "singleflight_arrival": {"run_id": "mine", "token": "mine"}}
STATE = {"singleflight_state": {"entered": True, "eager": True, "lease": None, "again": 3e11}}
FLAGS = {"is_eager": True, "called_directly": True, "_protected": 1, **MARKS, **STATE}
FORGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "our-marks": ({**MARKS, **STATE}, {}),
    "celerys-marks": ({"is_eager": True, "called_directly": True, "_protected": 1, "properties": {}}, {}),
    "marks-in-the-body": ({}, {**FLAGS, "properties": TOKEN}),
    "no-properties": ({}, {"is_eager": True, "properties": None, "delivery_info": {"is_eager": True}}),
    "garbled": ({"singleflight": {"for": 7, "options": False}}, {"singleflight": ["options", False]}),
    "for-another": ({"singleflight": {"for": ["run", "other"], "options": False}}, {}),
}
"""Headers, and what else stands in the body."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run one worker of three processes for all tests of this file; at its end it is still the same."""
    with Rig(tmp_path_factory.mktemp("forged")) as rig:
        rig.start(1, concurrency=3)
        (worker,) = rig.workers
        first = worker.child.pid
        yield rig
        assert worker.child.alive
        assert worker.child.pid == first
        assert not rig.endless_keys()


@pytest.fixture
def forger(rig: Rig) -> Iterator[Forger]:
    """Return a publisher that writes messages as it likes."""
    with Forger(rig.app) as forger:
        yield forger


def key_of(key: str) -> str:
    """Return the key of a run of the task `probe`."""
    return rule_of("singleflight", "probe", probe.run, ("key",), None, by_given=True).key((key,), {}) or ""


@pytest.mark.parametrize("how", FORGED)
def test_nothing_in_a_message_lets_its_run_past_the_lease(
    rig: Rig, forger: Forger, gate: Path, how: str
) -> None:
    """Celery spreads headers, and a part of the body, over the request where a worker looks."""
    holder = rig.send("probe", how, gate=str(gate))
    rig.wait_start(how)
    headers, embed = FORGED[how]
    forged = [forger.publish("probe", (how,), headers=headers, embed=embed) for _ in range(3)]

    states = rig.states([rig.app.AsyncResult(run) for run in forged])
    gate.touch()
    assert holder.get(timeout=20) == holder.id
    assert [run.run for run in rig.runs(how)] == [holder.id]
    assert states == ["REVOKED"] * 3
    record = rig.record_of(holder.id)
    assert record.slot == ""


def test_two_messages_that_choose_one_token_do_not_share_a_lease(rig: Rig, forger: Forger) -> None:
    """A claim is granted again to the same token, which is therefore nobody's to choose."""
    how: dict[str, Any] = {"headers": {"properties": TOKEN}, "embed": {"properties": TOKEN}}
    runs = [forger.publish("probe", ("token",), {"seconds": 0.3}, **how) for _ in range(6)]

    rig.states([rig.app.AsyncResult(run) for run in runs])
    assert rig.runs("token")
    assert not overlaps(rig.runs("token"))


def test_headers_that_are_forwarded_take_nothing_of_ours_along(rig: Rig, gate: Path) -> None:
    """A task without a lease that passes its headers on, as tracers do, frees no other from its own."""
    holder = rig.send("probe", "forwarded", gate=str(gate))
    rig.wait_start("forwarded")
    carries = rig.send("plain", "any", {"headers": {"trace": "1"}}, then="forward:forwarded")
    lets = rig.send("late", "unleased", {"singleton": False}, then="forward:forwarded")

    forwarded = [rig.app.AsyncResult(result.get(timeout=20)) for result in (carries, lets)]
    assert rig.states(forwarded) == ["REVOKED", "REVOKED"]
    gate.touch()
    assert holder.get(timeout=20) == holder.id


def past() -> str:
    """Return a moment that is over."""
    return datetime.fromtimestamp(time.time() - 60, UTC).isoformat()


GARBLED: list[dict[str, Any]] = [
    {"retries": "1"},
    {"retries": -5, "replaced_task_nesting": "x"},
    {"retries": HUGE, "replaced_task_nesting": HUGE},
    {"retries": [1], "replaced_task_nesting": 1.5},
    {"delivery_info": 7, "parent_id": ["p"], "properties": 9},
    {"singleflight": {"since": HUGE, "deferrals": HUGE, "must_run": "yes"}},
    {"singleflight": {"options": {"ttl": HUGE, "by": {"a": 1}, "window": float("inf")}}},
    {"singleflight": {"options": [1], "slot": 3, "joins": {"a": 1}}},
    {"singleflight": {"options": {"name": "other", "window": 3.1e8}}},
    {"singleflight": "text"},
]


@pytest.mark.parametrize("then", ["expired", "die", "exit"])
def test_no_message_ends_the_workers_main_process(rig: Rig, forger: Forger, then: str) -> None:
    """It reads a message again when that has expired, or its child has died, whatever stands there."""
    runs = []
    for number, garbled in enumerate(GARBLED if then == "expired" else GARBLED[::4]):
        headers, run_id = dict(garbled), f"{then}-{number}"
        if isinstance(headers.get("singleflight"), dict):
            headers["singleflight"] = {"for": [run_id, "probe"], **headers["singleflight"]}
        if then == "expired":
            headers["expires"] = past()
        how = {} if then == "expired" else {"then": then}
        runs.append(forger.publish("probe", (run_id,), how, run_id=run_id, headers=headers))

    states = rig.states([rig.app.AsyncResult(run) for run in runs])
    assert set(states) == {"REVOKED" if then == "expired" else "FAILURE"}
    after = rig.send("probe", f"after-{then}")
    assert after.get(timeout=20) == after.id
    assert rig.workers[0].child.alive


def test_a_deferred_run_comes_back_under_its_own_id_whatever_its_body_says(
    rig: Rig, forger: Forger, gate: Path
) -> None:
    """Celery lets a body replace the id that its message came with; an odd one ends a worker."""
    waits = Carried(options=Singleton(on_conflict="defer"))
    rig.send("probe", "embedded", gate=str(gate))
    rig.wait_start("embedded")
    runs = [str(uuid.uuid4()) for _ in range(3)]
    for run_id, other in zip(runs, (["list"], {"a": 1}, "of-another"), strict=True):
        headers = {"singleflight": waits.write(run_id, "probe")}
        forger.publish("probe", ("embedded",), run_id=run_id, headers=headers, embed={"id": other})
    until(lambda: rig.workers[0].logs().count("deferred, key probe:") >= len(runs), what="all to be deferred")
    gate.touch()

    until(lambda: len(rig.runs("embedded")) == 1 + len(runs), what="all to run")
    assert not overlaps(rig.runs("embedded"))
    assert rig.workers[0].child.alive


def test_a_skipped_run_ends_under_its_own_id_whatever_its_body_says(
    rig: Rig, forger: Forger, gate: Path
) -> None:
    """A duplicate whose body names another run leaves that run's result as it is."""
    victim = rig.send("probe", "victim")
    assert victim.get(timeout=20) == victim.id
    rig.send("probe", "skipping", gate=str(gate))
    rig.wait_start("skipping")
    forged = forger.publish("probe", ("skipping",), embed={"id": victim.id})

    assert rig.states([rig.app.AsyncResult(forged)]) == ["REVOKED"]
    assert rig.states([victim]) == ["SUCCESS"]


def test_no_message_closes_another_key_nor_frees_its_slot(rig: Rig, forger: Forger, gate: Path) -> None:
    """What a message names besides itself is believed of keys of its own task only."""
    coalesce = {"singleton": Singleton(on_conflict="coalesce")}
    rig.send("probe", "theirs", coalesce, gate=str(gate))
    rig.wait_start("theirs")
    waiting = rig.send("probe", "theirs", coalesce)
    until(lambda: rig.records()[key_of("theirs")].slot == waiting.id, what="the slot of the one that waits")
    before = set(rig.records())

    whole = Carried(slot=key_of("theirs")).write(waiting.id, "late")
    options = {**whole, "options": {"name": "probe", "window": 3e8}}
    for header in (whole, options, {**options, "options": {"name": "nightly", "by": []}}):
        forger.publish("late", ("mine",), run_id=waiting.id, headers={"singleflight": header})
    until(lambda: any(run.run == waiting.id for run in rig.runs("mine")), what="the forged run")

    assert rig.records()[key_of("theirs")].slot == waiting.id
    assert all(key.startswith("singleflight:late:") for key in set(rig.records()) - before)
    gate.touch()
    until(lambda: len(rig.runs("theirs")) == 2, what="the one that waited")


def test_no_message_is_handed_the_result_of_another_task(rig: Rig, forger: Forger) -> None:
    """Who may read its own result could otherwise read everybody's."""
    secret = rig.send("plain", "secret")
    assert secret.get(timeout=20) == secret.id

    for options in ({}, {"on_conflict": "join", "by": "*"}):
        run_id = f"spy-{len(options)}"
        header = {
            "for": [run_id, "probe"],
            "joins": secret.id,
            "options": options,
            "deferrals": 1,
            "since": 1.0,
        }
        forger.publish("probe", (run_id,), run_id=run_id, headers={"singleflight": header})
        assert rig.app.AsyncResult(run_id).get(timeout=20) == run_id


def test_an_id_with_control_characters_reaches_no_log_as_such(rig: Rig, forger: Forger, gate: Path) -> None:
    """A line that somebody has forged would be believed by whoever reads the log."""
    evil = "x\x1b[2J\nWARNING nobody runs"
    rig.send("probe", "evil", gate=str(gate))
    rig.wait_start("evil")
    forger.publish("probe", ("evil",), run_id=evil)
    until(lambda: rig.said("run sha256:"), what="the skip in the log")

    ours = [line for line in rig.workers[0].logs().splitlines() if "key probe:" in line]
    assert ours
    assert all("\x1b" not in line for line in ours)
