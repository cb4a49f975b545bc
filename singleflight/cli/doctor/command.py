"""The command ``doctor``: is this store, and this app's set-up, fit for leases."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from singleflight.cli.apps import load
from singleflight.cli.doctor.findings import Finding, Level, of_store
from singleflight.cli.doctor.redis_server import of_servers
from singleflight.cli.operators.access import open_store_of
from singleflight.cli.operators.commands import JSON, on_store
from singleflight.cli.output import Failure, spoken
from singleflight.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from singleflight.stores.base import Store

BRIEFLY = 1.0
"""Seconds for which the store remembers doctor's own key."""


@click.command()
@click.argument("words", metavar="[URL]", nargs=-1)
@click.option("-A", "--app", help="A Celery app; its own store, if there is no URL.")
@JSON
@on_store
def doctor(
    words: tuple[str, ...], *, app: str | None, as_json: bool, prefix: str, url_file: Path | None
) -> NoReturn:
    """Check whether a store, and a Celery app's set-up, is fit for leases.

    Exit code 1 if there is an error, 0 if there are only warnings. Nothing is changed but a key of doctor's
    own, for a second. INFO and CONFIG GET are asked where they are allowed.

    \b
      singleflight doctor redis://redis/0
      singleflight doctor -A shop
    """  # noqa: D301 - Click reads the \b
    if app is not None and not words and url_file is None:
        report(of_celery(load(app), None), as_json=as_json)
    store, rest = open_store_of(words, url_file, remember=BRIEFLY)
    if rest:
        raise Failure("doctor takes a store's URL and nothing else", 2)
    found = of_celery(load(app), store) if app is not None else of_any(store, prefix)
    report(found, as_json=as_json)


def of_any(store: Store, prefix: str) -> Iterator[Finding]:
    """Look at a store, and at the server behind it where more can be asked of it."""
    works = yield from of_store(store, prefix)
    servers = getattr(store, "servers", None)
    if works and servers is not None:
        try:
            yield from of_servers(servers())
        except Exception as error:  # noqa: BLE001 - whatever a server's INFO lacks, the rest still counts
            yield Finding(Level.WARNING, f"the server could not be looked at: {error}")


def of_celery(app: Any, store: Store | None) -> Iterator[Finding]:
    """Look at an app and its store, or at another one that a URL named."""
    from singleflight.cli.doctor.celery_app import of_app  # noqa: PLC0415 - needs Celery

    runtime = getattr(app, "singleflight", None)
    if runtime is None:
        remedy = "call singleflight.celery.install(app) where the app is made"
        yield Finding(Level.ERROR, "the app has no leases", remedy)
        return
    looked_at = store
    try:
        looked_at = store or runtime.open_leases(remember=BRIEFLY).store
    except ConfigurationError as error:
        yield Finding.said(Level.ERROR, str(error))
    else:
        yield from of_any(looked_at, runtime.prefix)
    yield from of_app(app, looked_at)


def report(found: Iterable[Finding], *, as_json: bool) -> NoReturn:
    """Print findings as they come, and exit."""
    worst = Level.OK
    for finding in found:
        if finding.level is Level.ERROR or worst is Level.OK:
            worst = finding.level
        if as_json:
            click.echo(spoken(json.dumps(asdict(finding))))
            continue
        click.echo("\n".join(_lines(spoken(finding.what), finding.level)))
        if finding.remedy:
            click.echo("\n".join(_lines(f"-> {spoken(finding.remedy)}", "")))
    sys.exit(1 if worst is Level.ERROR else 0)


def _lines(text: str, level: str) -> list[str]:
    """Break a text where a terminal would; whoever filters lines gets whole ones."""
    first = f"{level:<8} "
    if not sys.stdout.isatty():
        return [first + text]
    columns = max(40, shutil.get_terminal_size().columns)
    indent = " " * (len(first) + 3 * text.startswith("-> "))
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=indent,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
