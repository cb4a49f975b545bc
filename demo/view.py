"""The demo on a terminal while it goes on, or as plain lines where there is no terminal; and the verdict."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.lanes import Layout
from demo.story import Line, Story
from demo.verdict import due, overlapping, taken_over

if TYPE_CHECKING:
    from pathlib import Path

    from demo.facts import Facts
    from demo.performance import Performance
    from demo.verdict import Verdict


class View:
    """Shows on the standard error who does what; a block, so that the terminal is left as it was."""

    def __init__(self) -> None:
        """Write nothing yet."""
        self._console = Console(stderr=True, highlight=False)
        # No refreshing thread: children are started with the demo's only thread as their parent.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._story = Story()
        self._lines: deque[Line] = deque(maxlen=40)
        self._stage = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def update(self, performance: Performance) -> None:
        """Show what is new."""
        lines = self._story.new(performance.facts)
        if self._console.is_terminal:
            self._lines.extend(lines)
            self._live.update(self._picture(performance), refresh=True)
            return
        if performance.stage != self._stage:
            self._stage = performance.stage
            self._console.print(f"[{self._stage}]", markup=False)
        for line in lines:
            self._console.print(_told(line, performance), soft_wrap=True)

    def _picture(self, performance: Performance) -> Group:
        head = Text.assemble(("singleflight demo", "bold"), f"  {_stage(performance)}")
        processes = _processes(performance)
        rows = self._console.height - processes.row_count - 5
        latest = list(self._lines)[-max(3, rows) :] if rows > 0 else []
        told = Text("\n").join(_told(line, performance) for line in latest)
        told.no_wrap, told.overflow = True, "ellipsis"
        return Group(head, Text(), processes, Text(), _counts(performance.facts), told)


def _stage(performance: Performance) -> str:
    if performance.stage == "starting":
        return "starting a server, three beats, two workers and the users"
    if performance.stage == "playing":
        return f"{performance.elapsed:.0f} s of {performance.seconds:g} s, on {performance.server}"
    return "the beats have stopped; waiting for what is under way"


def _processes(performance: Performance) -> Table:
    facts, now = performance.facts, time.monotonic()
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)
    killed = {(kill.process, kill.pid) for kill in facts.kills}
    dead = {kill.process for kill in facts.kills if kill.process.startswith("beat")}
    running = {body.pid: body for body in facts.running()}
    for lane in Layout(facts).lanes:
        state = Text("idle", "dim")
        if lane.process in dead or (lane.process, lane.pid) in killed:
            state = Text("killed", "bold red")
        elif body := running.get(lane.pid):
            state = Text(f"holds {body.key} since {now - body.started:.1f} s", "green")
        elif not lane.pid:
            state = _senders_work(facts, lane.process, now)
        table.add_row(lane.process, Text(str(lane.pid or ""), "dim"), state)
    return table


def _senders_work(facts: Facts, process: str, now: float) -> Text:
    sent = [sent for sent in facts.sent if sent.process == process]
    if not process.startswith("beat"):
        return Text(f"{len(sent)} clicks and uploads")
    if not sent:
        return Text("no tick sent", "dim")
    ticks = f"{len(sent)} tick{'s' * (len(sent) != 1)} sent"
    since = now - sent[-1].at
    return Text(f"{ticks}, the last {since:.1f} s ago", "blue" if since < 1 else "")


def _counts(facts: Facts) -> Text:
    overlaps = len(overlapping(facts))
    ticks = sum(sent.by_beat for sent in facts.sent)
    returned = sum(body.how == "returned" for body in facts.bodies.values())
    parts = [f"{ticks} of {len(due(facts))} ticks", f"{returned} runs"]
    parts += [f"{len(facts.runs_said(kind))} {kind}" for kind in ("skipped", "deferred")]
    parts += [f"{len(taken_over(facts))} taken over"]
    text = Text(" · ".join(parts), "bold", no_wrap=True, overflow="ellipsis")
    return text.append(f" · {overlaps} overlaps", "bold red" if overlaps else "bold green")


def _told(line: Line, performance: Performance) -> Text:
    opened = performance.facts.opened
    at = line.at - opened[0] if opened else 0.0
    return Text.assemble((f"{at:6.1f} s  ", "dim"), f"{line.process:9} ", (line.text, line.colour))


def show_verdict(verdict: Verdict, picture: Path, *, to_stderr: bool) -> None:
    """Print the verdict for people."""
    console = Console(stderr=to_stderr, highlight=False)
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column()
    rows = [
        (verdict.ticks_due, "ticks due on the clock, with three beats of which one was killed"),
        (verdict.ticks_sent, "ticks sent"),
        (verdict.runs, "runs that came to their end"),
        (verdict.skipped, "duplicates skipped"),
        (verdict.deferred, "runs deferred"),
        (verdict.taken_over, "runs of killed processes taken over"),
    ]
    for number, words in rows:
        table.add_row(str(number), words)
    wrong = [(verdict.overlaps, "overlapped"), (verdict.lost, "lost"), (verdict.doubled, "doubled")]
    for number, words in wrong:
        table.add_row(Text(str(number), "bold red" if number else "bold green"), words)
    console.print(table)
    for problem in verdict.problems:
        console.print(Text(f"wrong: {problem}", "red"), soft_wrap=True)
    word = Text("clean: nothing overlapped, was lost or doubled", "bold green")
    console.print(word if verdict.ok else Text("not clean", "bold red"))
    console.print(
        f"judged on the log that beats, users and task bodies wrote; timeline: {picture}", soft_wrap=True
    )
