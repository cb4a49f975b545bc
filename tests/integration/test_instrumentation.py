"""Sentry's and OpenTelemetry's Celery instrumentation beside ours: they wrap the same places."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Singleton
from tests.integration import worker_app
from tests.support.beside import beside
from tests.support.child import Child
from tests.support.commands import celery_command, import_path
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.result import AsyncResult


APP = "tests.integration.instrumented_app"


@pytest.fixture(scope="module", params=["before", "after"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run one worker under both; they are switched on before or after `install`."""
    beside("sentry_sdk")
    beside("opentelemetry.instrumentation.celery")
    with Rig(tmp_path_factory.mktemp("instrumented")) as rig:
        yield rig.start(1, concurrency=4, app=APP, env={"INSTRUMENT": request.param})


def lines(rig: Rig, name: str) -> list[dict[str, Any]]:
    """Return what was written to a file so far."""
    file = rig.folder / name
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def span_states(rig: Rig, result: AsyncResult) -> set[str]:
    """Return the status of each of OpenTelemetry's spans of a run."""
    spans = lines(rig, "spans.log")
    return {one["status"] for one in spans if one["run"] == result.id and one["name"] == "run/probe"}


def transaction_states(rig: Rig, result: AsyncResult) -> set[str]:
    """Return the status of each of Sentry's transactions of a run."""
    sent = [line for line in lines(rig, "sentry.log") if line["type"] == "transaction"]
    ours = [one for one in sent if one["tags"]["celery_task_id"] == result.id]
    return {one["contexts"]["trace"]["status"] for one in ours}


def test_sentry_and_opentelemetry_see_runs_as_they_are(rig: Rig) -> None:
    """Singletons run, skip, retry, fail and publish as ever; of all that only a failure is an error."""
    gate = rig.folder / "gate"
    ran = rig.send("probe", "traced", gate=str(gate))
    rig.wait_start("traced")
    skipped = rig.send("probe", "traced")
    deferred = rig.send("probe", "traced", {"singleton": Singleton(on_conflict="defer")})
    until(lambda: rig.said(f"{deferred.id} deferred"), what="the deferral")
    until(lambda: rig.said(f"{skipped.id} skipped"), what="the skip")
    gate.touch()
    retried = rig.send("probe", "retried", then="retry-later")
    failed = rig.send("probe", "failed", then="fail")
    successor = rig.app.send_task("loop-once", ("loop", 2))
    based = rig.send("based", "based")
    states = rig.states([ran, skipped, deferred, retried, failed, successor, based])

    assert states == ["SUCCESS", "REVOKED", "SUCCESS", "SUCCESS", "FAILURE", "SUCCESS", "SUCCESS"]
    assert [len(rig.runs(key)) for key in ("traced", "retried", "failed")] == [2, 3, 1]
    assert successor.get() == ["accepted", "duplicate", True]
    assert based.get() == {"before": True, "called": True, "held": True}
    assert len(rig.wait_start("loop", 2)) == 2

    results = (ran, skipped, deferred, retried, failed)
    traces = [{"ok"}, {"aborted"}, {"aborted", "ok"}, {"aborted", "ok"}, {"internal_error"}]
    spans = [{"UNSET"}] * 4 + [{"ERROR"}]
    until(lambda: [transaction_states(rig, result) for result in results] == traces, what="Sentry's view")
    until(lambda: [span_states(rig, result) for result in results] == spans, what="OpenTelemetry's view")
    errors = [line for line in lines(rig, "sentry.log") if line["type"] == "event"]
    assert [(error["transaction"], error["exception"]["values"][-1]["type"]) for error in errors] == [
        ("probe", "ValueError")
    ]


def test_sentrys_monitors_see_each_tick_once(rig: Rig, request: pytest.FixtureRequest) -> None:
    """Of two beats one opens the check-in of a tick, and the run closes it, one that was deferred as well."""
    gate = rig.folder / "tick-gate"
    busy = rig.send("probe", "tick", gate=str(gate))
    rig.wait_start("tick")
    env = {
        **import_path(rig.folder),
        "CELERY_BROKER_URL": rig.broker.url,
        "CELERY_RESULT_BACKEND": rig.broker.url,
        worker_app.STORE: rig.store.url,
        worker_app.FOLDER: str(rig.folder),
        worker_app.CONF: '{"beat_max_loop_interval": 1}',
        "INSTRUMENT": request.node.callspec.params["rig"],
    }
    argv = [*celery_command(APP), "beat", "--scheduler", "singleflight", "-l", "DEBUG"]
    beats = [Child(argv, log=rig.folder / f"beat{n}.log", ready="beat: Waking up", env=env) for n in (1, 2)]
    try:
        for beat in beats:
            beat.wait_ready()
        until(
            lambda: any(" deferred" in line for line in rig.workers[0].logs().splitlines()), 20, "a deferral"
        )
        gate.touch()
        assert busy.get(timeout=30) == busy.id
        once = {"plain": ["in_progress", "ok"], "probe": ["in_progress", "ok"]}
        until(lambda: checked_in(rig) == once, 30, "the check-ins of two ticks")
    finally:
        for beat in beats:
            beat.kill()


def checked_in(rig: Rig) -> dict[str, list[str]]:
    """Return what each of Sentry's monitors has been told, in order."""
    told: dict[str, list[str]] = {}
    for line in lines(rig, "sentry.log"):
        if line["type"] == "check_in":
            told.setdefault(line["monitor_slug"], []).append(line["status"])
    return told
