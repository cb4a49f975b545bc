"""A counted run: starts the processes, shows how far they are, and gives the account at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import redis
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from examples.dramatiq_app.account import Account, Totals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from examples.dramatiq_app.process import Options

LOOK_EVERY = 0.25
"""Seconds between two looks at the totals."""


def counted(options: Options, processes: int, *, kill: bool, console: Console) -> tuple[Totals, float]:
    """Run until all numbers are handled; return the totals and the numbers handled per second."""
    options = replace(options, run=options.run or uuid.uuid4().hex[:8])
    account = Account(options.url, options.run)
    assert options.count is not None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    label = "with singleflight" if options.guarded else "without singleflight"
    began: tuple[float, int] | None = None
    with Progress(*columns, console=console) as progress, _processes(options, processes, console) as children:
        bar = progress.add_task(label, total=options.count)
        while (handled := account.handled()) < options.count:
            progress.update(bar, completed=handled)
            if began is None and handled:
                began = time.monotonic(), handled
            if kill and handled > options.count // 2:
                kill = not _kill(children, account.generator(), console)
            if not any(child.poll() is None for child in children):
                raise SystemExit("all processes have ended before the work was done")
            time.sleep(LOOK_EVERY)
        progress.update(bar, completed=handled)
        now = time.monotonic()
    rate = 0.0 if began is None else (handled - began[1]) / (now - began[0])
    totals = account.totals()
    _forget(options)
    return totals, rate


def show(totals: Totals, rate: float, console: Console) -> None:
    """Print the account."""
    table = Table("sent", "handled", "faulty", "doubled", "lost", "copies left alone", "per second")
    columns = (totals.sent, totals.handled, totals.faulty, totals.doubled, totals.lost, totals.copies)
    table.add_row(*(f"{number:,}" for number in columns), f"{rate:,.0f}")
    console.print(table)


def compare(options: Options, processes: int, console: Console) -> None:
    """Run the same work without and with singleflight, twice each, and print what each took."""
    assert options.count is not None
    speeds: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    for guarded in (False, True, True, False):  # so that a machine that gets slower harms both alike
        run = replace(options, run="", guarded=guarded)
        before = os.times()
        _, rate = counted(run, processes, kill=False, console=console)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        speeds[guarded].append(rate)
        costs[guarded].append(used / options.count * 1e6)
        console.print(f"{rate:,.0f} per second, {costs[guarded][-1]:,.0f} µs of CPU each", highlight=False)
    table = Table("", "messages per second", "µs of CPU per message")
    means = {guarded: (sum(speeds[guarded]) / 2, sum(costs[guarded]) / 2) for guarded in (False, True)}
    table.add_row("without singleflight", *(f"{mean:,.0f}" for mean in means[False]))
    table.add_row("with singleflight", *(f"{mean:,.0f}" for mean in means[True]))
    table.add_row(
        "ratio", *(f"{within / without:.3f}" for without, within in zip(*means.values(), strict=True))
    )
    console.print(table)


@contextmanager
def _processes(options: Options, count: int, console: Console) -> Iterator[list[subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []
    try:
        for index in range(count):
            generates = options.guarded or index == 0
            command = [sys.executable, "-m", "examples.dramatiq_app", "--run", options.run]
            command += ["--count", str(options.count), "--interval", str(options.interval)]
            command += ["--threads", str(options.threads), "--ttl", str(options.ttl)]
            command += [] if options.guarded else ["--plain"]
            command += [] if generates else ["--handle-only"]
            child = subprocess.Popen(  # noqa: S603 - this very program
                command,
                env={**os.environ, "REDIS_URL": options.url},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            children.append(child)
            threading.Thread(target=_relay, args=(child, console), daemon=True).start()
        yield children
    finally:
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _relay(child: subprocess.Popen[str], console: Console) -> None:
    """Print what a process says above the progress bar."""
    for line in child.stdout or ():
        console.print(line.rstrip(), markup=False, highlight=False)


def _kill(children: list[subprocess.Popen[str]], pid: int, console: Console) -> bool:
    for child in children:
        if child.pid == pid and child.poll() is None:
            child.kill()
            console.print(f"killed process {pid}, which generated; another takes over")
            return True
    return False


def _forget(options: Options) -> None:
    """Remove what the broker keeps of a run that is over."""
    with redis.Redis.from_url(options.url) as client:
        for key in client.scan_iter(f"example-{options.run}:*", count=1000):
            client.delete(key)
