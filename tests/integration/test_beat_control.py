"""Operators beside real beats and a worker: look, pause, trigger, backfill; by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.beats import SCHEDULE, SHARING, Replicas, entry
from tests.support.commands import import_path
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


SCHEDULED = {"one": entry("one", 1.0), "cron": entry("cron", ["*"] * 5, "noted")}


def beat(replicas: Replicas, *words: str, celery: bool = False) -> str:
    """Run ``singleflight beat``, or the same command under ``celery``."""
    program = (
        ["celery", "-A", SHARING, "singleflight", "beat"]
        if celery
        else ["singleflight.cli", "beat", "-A", SHARING]
    )
    environment = {**os.environ, **import_path(replicas.folder), **replicas._env()}
    environment[SCHEDULE] = json.dumps(replicas.schedule)
    done = subprocess.run(
        [sys.executable, "-m", *program, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def facts(replicas: Replicas, name: str, **how: Any) -> dict[str, Any]:
    """Return what ``ls --json`` says of an entry."""
    lines = map(json.loads, beat(replicas, "ls", "--json", **how).splitlines())
    return next(one for one in lines if one["name"] == name)


@pytest.mark.timeout(120)
def test_a_paused_entry_is_sent_by_no_replica_until_it_is_resumed(tmp_path: Path) -> None:
    """Two beats, one of which is replaced meanwhile; a trigger goes out all the same."""
    with Replicas(tmp_path) as replicas:
        replicas.schedule = SCHEDULED
        replicas.start()
        second = replicas.start()
        until(lambda: len(replicas.mailbox.of("one")) >= 3, what="three ticks")
        said = beat(replicas, "pause", "one", "--note", "the disk is full")
        paused = len(replicas.mailbox.of("one"))
        second.kill()
        second.start()
        second.wait_ready()
        shown = facts(replicas, "one", celery=True)
        listed = beat(replicas, "ls").splitlines()
        (triggered,) = beat(replicas, "trigger", "one").split()
        until(lambda: len(replicas.mailbox.of("one")) > paused, what="the one that was triggered")
        held = [one.task_id for one in replicas.mailbox.of("one")[paused:]]
        resumed = beat(replicas, "resume", "one")
        until(lambda: len(replicas.mailbox.of("one")) > paused + 3, what="ticks after the pause")
        after = facts(replicas, "one")
        replicas.stop()

    assert said.startswith("one is paused by ")
    assert shown["paused"]["note"] == "the disk is full"
    assert listed[0] == "cron  crontab * * * * *, noted"
    assert listed[2] == "one  every 1.00 second, known.only.by_name"
    assert "; paused by " in listed[3]
    assert held == [triggered]
    assert "the disk is full" in resumed
    assert after["paused"] is None
    assert after["schedule"] == "every 1.00 second"


@pytest.mark.timeout(300)
def test_a_backfill_that_two_operators_ask_for_at_once_runs_each_planned_time_once(tmp_path: Path) -> None:
    """500 planned times, 500 runs, each with its planned time; asked for again, nothing is sent."""
    begin = datetime(2026, 1, 31, tzinfo=UTC)
    span = ("--from", begin.isoformat(), "--to", (begin + timedelta(minutes=500)).isoformat())
    with Replicas(tmp_path, mailbox=False) as replicas:
        replicas.schedule = SCHEDULED
        replicas.work(concurrency=1)
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(beat, replicas, "backfill", "cron", *span, "--json") for _ in range(2)]
            done = [json.loads(one.result()) for one in asked]
        again = beat(replicas, "backfill", "cron", *span)
        until(lambda: len(replicas.bodies.runs()) >= 500, what="500 runs", timeout=60)
        runs = replicas.bodies.runs()

    planned = [(begin + timedelta(minutes=n)).isoformat() for n in range(500)]
    assert sorted(done[0]["sent"] + done[1]["sent"]) == planned
    assert sorted(run.key for run in runs) == planned
    assert again == "0 planned times sent, 500 had been sent by a backfill before\n"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("task", ["failing", "stuck"])
def test_a_run_that_fails_pauses_its_entry_if_that_asks_for_it(tmp_path: Path, task: str) -> None:
    """By an exception or by a hard time limit; an entry that does not ask goes on."""
    with Replicas(tmp_path, mailbox=False) as replicas:
        replicas.schedule = {"one": entry("one", 3.0, task), "other": entry("other", 1.0, "failing")}
        replicas.settings["singleflight_beat_entries"] = {"one": {"pause_on_failure": True}}
        replicas.work(concurrency=2)
        replicas.start()
        replicas.start()
        until(lambda: facts(replicas, "one")["paused"], what="the pause", timeout=60)
        before = len(replicas.bodies.runs())
        until(lambda: len(replicas.bodies.runs()) > before + 4, what="runs of the other entry")
        shown = facts(replicas, "one")["paused"]
        runs = [run for run in replicas.bodies.runs() if run.key == "one"]
        replicas.stop()

    error = "RuntimeError" if task == "failing" else "TimeLimitExceeded"
    assert shown["note"] == f"run {runs[-1].run} failed with {error}"
    assert len(runs) == 1
