"""The command: play, judge, draw."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from demo.children import ChildFailed
from demo.performance import Performance
from demo.scenario import SHORTEST
from demo.servers import NoServer
from demo.timeline import draw
from demo.verdict import judge
from demo.view import View, show_verdict

if TYPE_CHECKING:
    from demo.verdict import Verdict


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(SHORTEST, 3600),
    default=30,
    show_default=True,
    help=f"How long ticks and clicks go on; at least {SHORTEST}, for less would not fit the kills.",
)
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Where the picture goes (SVG).  [default: a new file in the system's temp directory]",
)
@click.option("--without", is_flag=True, help="Play it without singleflight, to see what happens then.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def demo(seconds: float, timeline: Path | None, *, without: bool, as_json: bool) -> None:
    """Watch duplicates being skipped: three beats, two workers, one server, two kills.

    Everything is real and runs on this machine, on a server that the demo brings along. One beat is killed
    after a third of the time and a worker's process, in the middle of a run, after two thirds. Then the log
    that the task bodies wrote is judged: the exit status is 0 if nothing overlapped, was lost or doubled.
    """
    if timeline is not None and not timeline.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {timeline.parent}", param_hint="--timeline")
    _end_on_signals()
    try:
        with View() as view:
            facts = Performance(seconds, view.update, without=without).run()
    except (ChildFailed, NoServer) as error:
        raise click.ClickException(str(error)) from None
    verdict = judge(facts)
    picture = _write(timeline, draw(facts, verdict))
    if as_json:
        click.echo(json.dumps(_as_object(verdict, picture)))
    show_verdict(verdict, picture, to_stderr=as_json)
    sys.exit(0 if verdict.ok else 1)


def _write(timeline: Path | None, picture: str) -> Path:
    if timeline is None:
        descriptor, name = tempfile.mkstemp(prefix="singleflight-demo-", suffix=".svg")
        os.close(descriptor)
        timeline = Path(name)
    timeline.write_text(picture, encoding="utf-8")
    return timeline.absolute()


def _as_object(verdict: Verdict, picture: Path) -> dict[str, Any]:
    numbers = asdict(verdict)
    del numbers["problems"]
    return {**numbers, "timeline": str(picture), "ok": verdict.ok}


def _end_on_signals() -> None:
    """Turn the signals that ask a program to end into an orderly way out, once."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]

    def end(number: int, _frame: object) -> NoReturn:
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in signals:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, end)
