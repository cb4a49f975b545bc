"""What the operators' commands do, whether a URL or an app's settings named the store."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import click

from singleflight.cli.operators.access import who_asks
from singleflight.cli.operators.entry import STATES, brief, in_order, named
from singleflight.cli.output import Failure, on_stderr, speak, speak_of_leases, spoken
from singleflight.errors import StoreUnavailable
from singleflight.lease import renewal_interval
from singleflight.log import logger
from singleflight.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

    from singleflight.cli.operators.access import Access
    from singleflight.cli.operators.entry import Entry

WIDE = 60
"""Columns of a terminal from which on `watch` shows more than what runs for how long."""

HEADING = 4
"""Rows that `watch` needs besides its keys."""


def ls(access: Access, *, everything: bool, as_json: bool) -> None:
    """Print a store's keys."""
    entries = in_order(list(access.entries()))
    shown = [entry for entry in entries if everything or not entry.quiet]
    if as_json:
        for entry in shown:
            click.echo(json.dumps(entry.facts()))
        return
    for entry in shown:
        click.echo("\n".join(entry.lines()))
    if entries:
        with on_stderr():
            click.echo(_count(entries, hidden=len(entries) - len(shown)), err=True)
    else:
        speak(f"nothing is known under the prefix {access.prefix!r}; another one is given with --prefix")


def show(access: Access, key: str, *, wanted: str = "", as_json: bool) -> None:
    """Print all about one key, or a line or two about each of several.

    ``wanted`` is what was typed, if that may also be a task, whose keys are meant, or a run's id.

    Raises:
        Failure: if the store knows nothing of it.
    """
    entry = access.entry(key)
    found = [entry] if entry else in_order(access.related(wanted)) if wanted else []
    if not found:
        raise Failure(_unknown(key))
    if as_json:
        click.echo("\n".join(json.dumps(one.facts()) for one in found))
    elif len(found) == 1:
        click.echo("\n".join(found[0].paragraph()))
    else:
        for one in found:
            click.echo("\n".join(one.lines()))
        click.echo(f"{len(found)} keys; show one of them by its name", err=True)


def evict(access: Access, key: str, *, yes: bool, as_json: bool) -> None:
    """Free a key by force, after having asked: end the lease, the window and the waiting.

    Raises:
        Failure: if there is no such record, or nobody can be asked.
    """
    entry = _known(access, key)
    if not as_json:
        click.echo("\n".join(entry.lines()))
    if entry.state == "running" and not as_json:
        news = brief(renewal_interval(entry.view.ttl))
        click.echo(f"The holder runs, and learns within {news} that it lost its lease.")
        click.echo("Another run can start at once, beside it.")
    if entry.view.waiting and not as_json:
        click.echo("The run that waits is judged like any other if its message arrives.")
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise Failure("nobody is there to be asked; say --yes")
        click.confirm("Evict it?", abort=True)
    evicted = access.store.evict(key)
    speak_of_leases(logging.WARNING)
    freed = ", ".join(entry.blockers()) or "nothing blocked it"
    logger.warning("%s evicted by %s: %s", entry.name, who_asks(), freed)
    if as_json:
        click.echo(json.dumps({**entry.facts(), "evicted": evicted}))


def watch(access: Access, *, every: float, everything: bool, as_json: bool) -> None:
    """Print a store's keys again and again, until Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        if as_json:
            _stream(access, every)
        else:
            _picture(access, every, everything=everything)


def _stream(access: Access, every: float) -> None:
    before: dict[str, object] | None = None
    away = False
    while True:
        try:
            entries = list(access.entries())
        except StoreUnavailable as error:
            if before is None:
                raise
            if not away:
                speak(str(error))  # it may be back at the next look
            away = True
        else:
            before, away = _news(entries, before or {}), False
        time.sleep(every)


def _news(entries: list[Entry], before: dict[str, object]) -> dict[str, object]:
    """Print the keys that have changed, and return all as they are now."""
    now: dict[str, object] = {entry.key: entry.view.contents for entry in entries}
    for entry in entries:
        if before.get(entry.key) != entry.view.contents:
            click.echo(json.dumps(entry.facts()))
    for key in before.keys() - now.keys():
        click.echo(json.dumps({"key": key, "short_key": named(key), "state": "forgotten"}))
    return now


def _picture(access: Access, every: float, *, everything: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - no other command needs it, and it takes its time
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415 - and not a text of ours, whose brackets would be markup

    console = Console(highlight=False)
    live = Live(console=console, auto_refresh=False)
    can_redraw = console.is_terminal and not console.is_dumb_terminal
    entries: list[Entry] | None = None
    with live if can_redraw else nullcontext():
        while True:
            trouble = ""
            try:
                entries = in_order(list(access.entries()))
            except StoreUnavailable as error:
                if entries is None:
                    raise
                trouble = f"as it was, for {spoken(str(error))}"  # it may be back at the next look
            shown = [entry for entry in entries if everything or not entry.quiet]
            room = max(1, console.height - HEADING) if can_redraw else len(shown)
            table = _table(shown[:room], wide=console.width >= WIDE)
            more = f"{len(shown) - room} more; " if len(shown) > room else ""
            table.caption = Text(trouble or more + _count(entries, hidden=len(entries) - len(shown)))
            if can_redraw:
                live.update(table, refresh=True)
            else:
                console.print(table)
            time.sleep(every)


def _table(shown: list[Entry], *, wide: bool) -> Table:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, caption_justify="left")
    table.add_column("STATE", no_wrap=True)
    table.add_column("KEY", overflow="fold", ratio=1)
    if wide:
        table.add_column("HOLDER", overflow="fold", max_width=22)
    for name in ("FOR", "LEFT", *(("WAITS", "REFUSED") if wide else ())):
        table.add_column(name, no_wrap=True, justify="right")
    for entry in shown:
        facts, held = entry.facts(), entry.view.held
        left = facts["time_left"] if entry.state == "running" else facts["window_left"]
        row = [
            entry.state,
            entry.name,
            f"{facts['host']}:{facts['pid']}" if held and facts["host"] else "",
            brief(facts["started_ago"]) if held and isinstance(facts["started_ago"], float) else "",
            brief(left) if isinstance(left, float) else "",
            "1" if entry.view.waiting else "",
            str(entry.view.refused or ""),
        ]
        cells = row if wide else [*row[:2], *row[3:5]]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _count(entries: list[Entry], *, hidden: int) -> str:
    states = Counter(entry.state for entry in entries)
    words = ", ".join(f"{states[state]} {state}" for state in STATES if states[state] and state != "free")
    free = f"{states['free']} free" + (" (--all shows them)" if hidden else "")
    return f"{words}, {free}" if words else free


def _known(access: Access, key: str) -> Entry:
    entry = access.entry(key)
    if entry is None:
        raise Failure(_unknown(key))
    return entry


def _unknown(key: str) -> str:
    return f"the store knows nothing of {key}: nobody has it, or had it lately"
