"""The demo's verdict: what it takes for clean, and each wrong that it must find."""

from __future__ import annotations

from typing import Any

import pytest

from demo.facts import Facts
from demo.verdict import judge

Lines = list[dict[str, Any]]


def line(event: str, at: float, process: str = "worker 1", pid: int = 1, **more: Any) -> dict[str, Any]:
    """Return one line of the log."""
    return {"event": event, "at": at, "process": process, "pid": pid, **more}


def sent(at: float, run: str, task: str = "report", key: str = "", process: str = "users") -> Lines:
    """Return a message's line; the clock's slots are two seconds, as in the demo."""
    return [line("sent", at, process, task=task, key=key or task, run=run, slot=int(at // 2))]


def tick(at: float, run: str, beat: str = "beat 1") -> Lines:
    """Return the line of a tick."""
    return sent(at, run, process=beat)


def ran(run: str, start: float, end: float | None, key: str = "report", pid: int = 1) -> Lines:
    """Return the lines of a body; without an end if there is none."""
    task = key if key in ("report", "import_file") else "recalculate"
    body = f"{run}/{start}"
    lines = [line("start", start, pid=pid, body=body, task=task, key=key, run=run, fence=1)]
    return lines if end is None else [*lines, line("end", end, pid=pid, body=body, how="returned")]


def skipped(at: float, run: str, process: str = "worker 1") -> Lines:
    """Return the line of a listener that heard of a skip."""
    return [line("said", at, process, kind="skipped", task="any", run=run, text="")]


def opened(slot: int) -> Lines:
    """Return the line that says from where on ticks are due."""
    return [line("open", 0.0, "demo", slot=slot)]


def closed(slot: int) -> Lines:
    """Return the line that says up to where ticks are due."""
    return [line("close", 99.0, "demo", slot=slot)]


CLEAN: Lines = [
    *opened(0),
    *tick(0.1, "r0"),
    *ran("r0", 0.2, 3.4),
    *tick(2.0, "r1", "beat 2"),
    *skipped(2.1, "r1"),
    *tick(4.0, "r2"),
    *ran("r2", 4.1, None, pid=7),
    line("kill", 5.0, "demo", whom="worker 1", victim=7),
    *ran("r2", 8.0, 11.2, pid=8),
    *sent(1.0, "c0", "recalculate", "account 1"),
    *ran("c0", 1.1, 2.1, "account 1"),
    *sent(1.2, "c1", "recalculate", "account 1"),
    *sent(1.4, "c2", "recalculate", "account 1"),
    *skipped(1.5, "c2"),
    *ran("c1", 2.2, 3.2, "account 1"),
    *closed(2),
]


def facts_of(lines: Lines) -> Facts:
    """Return what a log says."""
    facts = Facts()
    facts.add(lines)
    return facts


def test_a_log_without_wrongs_is_clean() -> None:
    """Sent ticks, justified skips and a killed run that came back are counted, and nothing is wrong."""
    verdict = judge(facts_of(CLEAN))

    assert (verdict.ticks_due, verdict.ticks_sent, verdict.runs, verdict.skipped) == (3, 3, 4, 2)
    assert verdict.taken_over == 1
    assert verdict.ok
    assert not verdict.problems


@pytest.mark.parametrize(
    ("more", "count", "word"),
    [
        (ran("c9", 1.5, 2.5, "account 1"), "overlaps", "at once"),
        (ran("r2", 11.0, None), "overlaps", "at once"),
        (closed(4), "lost", "no beat sent it"),
        (sent(20.0, "r7"), "lost", "not come to an end"),
        ([*sent(20.0, "r7"), *ran("r7", 20.1, None)], "lost", "not come to an end"),
        ([*sent(20.0, "r7"), *skipped(20.1, "r7", "beat 1")], "lost", "not come to an end"),
        ([*sent(20.0, "r7"), *skipped(20.1, "r7")], "lost", "nothing did its work"),
        ([*sent(13.0, "r7"), *skipped(13.5, "r7")], "lost", "nothing did its work"),
        (
            [*sent(2.5, "c7", "recalculate", "account 1"), *skipped(2.6, "c7")],
            "lost",
            "nothing did its work",
        ),
        (
            [
                *sent(2.5, "i1", "import_file"),
                *ran("i1", 2.6, 4.0, "import_file"),
                *sent(2.5, "i2", "import_file"),
                *skipped(2.7, "i2"),
            ],
            "lost",
            "nothing did its work",
        ),
        (tick(4.3, "r8", "beat 3") + ran("r8", 20.0, 21.0), "doubled", "was sent 2 times"),
        (tick(4.3, "r2", "beat 3"), "doubled", "was sent 2 times"),
        (ran("r2", 20.0, 21.0), "doubled", "ended 2 times"),
        (ran("nobody", 20.0, 21.0), "doubled", "published never"),
    ],
)
def test_every_wrong_is_found(more: Lines, count: str, word: str) -> None:
    """One more happening in a clean log makes the verdict say which count is off, and why."""
    verdict = judge(facts_of([*CLEAN, *more]))

    assert not verdict.ok
    assert getattr(verdict, count) >= 1
    assert any(word in problem for problem in verdict.problems), verdict.problems


def test_a_killed_run_that_never_comes_back_is_lost() -> None:
    """A run whose body was killed and that no worker ran again counts as lost."""
    lines = [one for one in CLEAN if one.get("body") != "r2/8.0"]

    verdict = judge(facts_of(lines))

    assert verdict.lost == 1


def test_a_dead_holders_lease_justifies_a_skip_for_its_ttl_only() -> None:
    """A tick may be skipped while the lease of a killed run still lives, and not long after."""
    early, late = (judge(facts_of([*CLEAN, *sent(5.0, "r9"), *skipped(at, "r9")])) for at in (6.0, 13.9))

    assert early.ok
    assert late.lost == 1


def test_a_demo_without_any_tick_has_lost_them_all() -> None:
    """If no beat ever sends anything, every tick from opening to closing is lost."""
    verdict = judge(facts_of([*opened(5), *closed(9)]))

    assert (verdict.ticks_due, verdict.ticks_sent, verdict.lost) == (5, 0, 5)
