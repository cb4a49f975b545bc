"""The commands of ``singleflight beat``: what operators do with the entries of a Celery app's schedule."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from singleflight.cli.apps import load
from singleflight.cli.operators.access import who_asks
from singleflight.cli.operators.commands import JSON
from singleflight.cli.operators.entry import brief
from singleflight.cli.output import Failure
from singleflight.cli.parameters import duration, time
from singleflight.errors import SingleflightError
from singleflight.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight.celery.beat import BeatEntry

NAME = click.argument("name")


@click.group()
@click.option("-A", "--app", "name", required=True, envvar="CELERY_APP", help="The Celery app.")
@click.pass_context
def beat(ctx: click.Context, name: str) -> None:
    """See and steer the entries of a Celery app's beat.

    \b
      singleflight beat -A shop ls
      singleflight beat -A shop trigger report
      singleflight beat -A shop backfill report --from 2026-01-30T00:00Z --to 2026-01-31T00:00Z
      singleflight beat -A shop pause report --for 2h --note "the disk is full"
    """  # noqa: D301 - Click reads the \b
    ctx.obj = load(name)


@click.command()
@JSON
@click.pass_obj
def ls(app: Any, *, as_json: bool) -> None:
    """List the entries: schedule, when and by whom sent last, what comes next, how many were missed."""
    from singleflight.celery.beat import entries  # noqa: PLC0415 - needs Celery

    for entry in entries(app):
        click.echo(json.dumps(_facts(entry)) if as_json else "\n".join(_lines(entry)))


@click.command()
@NAME
@JSON
@click.pass_obj
def trigger(app: Any, name: str, *, as_json: bool) -> None:
    """Send an entry now, once, whatever its schedule says, and print the id of its message."""
    from singleflight.celery.beat import trigger as send  # noqa: PLC0415 - needs Celery

    task_id = _published(lambda: send(app, name))
    click.echo(json.dumps({"name": name, "task_id": task_id}) if as_json else task_id)


@click.command()
@NAME
@click.option("--from", "begin", type=time, required=True, help="The first planned time.")
@click.option("--to", "end", type=time, required=True, help="Planned times before this one.")
@JSON
@click.pass_obj
def backfill(app: Any, name: str, *, begin: str, end: str, as_json: bool) -> None:
    """Send an entry for each planned time of a span that is past; each once, however often this is asked."""
    from singleflight.celery.beat import backfill as fill  # noqa: PLC0415 - needs Celery

    done = _published(lambda: fill(app, name, datetime.fromisoformat(begin), datetime.fromisoformat(end)))
    if as_json:
        told = {kind: [at.isoformat() for at in getattr(done, kind)] for kind in ("sent", "before")}
        click.echo(json.dumps({"name": name, **told}))
        return
    before = f", {len(done.before)} had been sent by a backfill before" if done.before else ""
    click.echo(f"{len(done.sent)} planned times sent{before}")


@click.command()
@NAME
@click.option("--for", "seconds", type=duration, help="For so long, such as 2h; else until it is resumed.")
@click.option("--note", default="", help="Why, for others to read.")
@JSON
@click.pass_obj
def pause(app: Any, name: str, *, seconds: float | None, note: str, as_json: bool) -> None:
    """Have no replica send an entry for a time, or until it is resumed."""
    from singleflight.celery.beat import pause as hold  # noqa: PLC0415 - needs Celery

    paused = hold(app, name, owner=who_asks(), note=note, seconds=seconds)
    click.echo(json.dumps({"name": name, "paused": _pause(paused)}) if as_json else f"{name} is {paused}")


@click.command()
@NAME
@JSON
@click.pass_obj
def resume(app: Any, name: str, *, as_json: bool) -> None:
    """End the pause of an entry; beats send it again within 5 s, if it is due."""
    from singleflight.celery.beat import resume as go_on  # noqa: PLC0415 - needs Celery

    paused = go_on(app, name)
    if as_json:
        click.echo(json.dumps({"name": name, "was_paused": _pause(paused)}))
    else:
        click.echo(f"{name} was {paused}" if paused else f"{name} is not paused")


COMMANDS = (ls, trigger, backfill, pause, resume)

for command in COMMANDS:
    beat.add_command(command)


def _published(send: Callable[[], Any]) -> Any:
    try:
        return send()
    except SingleflightError:
        raise
    except Exception as error:  # whatever the broker's library raises
        raise Failure(f"it could not be published: {error}") from error


def _facts(entry: BeatEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "task": entry.task,
        "schedule": entry.schedule,
        "last": _text(entry.last),
        "host": entry.by.host if entry.by else None,
        "pid": entry.by.pid if entry.by else None,
        "next": _text(entry.next),
        "missed": entry.missed,
        "paused": _pause(entry.paused),
    }


def _pause(paused: Any) -> dict[str, object] | None:
    if paused is None:
        return None
    return {"owner": paused.owner, "note": paused.note, "until": _text(paused.until)}


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _lines(entry: BeatEntry) -> list[str]:
    now = datetime.now(UTC)
    by = f" by {entry.by.host} pid {entry.by.pid}" if entry.by else ""
    sent = f"sent {brief((now - entry.last).total_seconds())} ago{by}" if entry.last else "not sent yet"
    story = [
        sent,
        f"next in {brief((entry.next - now).total_seconds())}" if entry.next else "",
        f"{entry.missed} missed" if entry.missed else "",
        str(entry.paused) if entry.paused else "",
    ]
    lines = [f"{entry.name}  {entry.schedule}, {entry.task}", f"    {'; '.join(filter(None, story))}"]
    return [printable(line, 1000) for line in lines]
