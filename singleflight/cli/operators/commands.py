"""The commands ``ls``, ``show``, ``evict`` and ``watch``, on any store that a URL names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from singleflight.api import PREFIX
from singleflight.cli.operators import actions
from singleflight.cli.operators.access import open_access, open_lease, wanted_by
from singleflight.cli.output import Failure
from singleflight.cli.parameters import pause

if TYPE_CHECKING:
    from collections.abc import Callable

STORE = [
    click.option("--prefix", envvar="SINGLEFLIGHT_PREFIX", default=PREFIX, help="What all keys start with."),
    click.option("--url-file", type=click.Path(dir_okay=False, path_type=Path), help="File with the URL."),
]
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
EVERY = click.option("--every", type=pause, default="1s", show_default=True, help="Time between two looks.")
ALL = click.option("--all", "everything", is_flag=True, help="Also keys that are free.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")


def on_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the store is."""
    for option in reversed(STORE):
        command = option(command)
    return command


@click.command()
@click.argument("words", metavar="[URL]", nargs=-1)
@ALL
@JSON
@on_store
def ls(
    words: tuple[str, ...], *, everything: bool, as_json: bool, prefix: str, url_file: Path | None
) -> None:
    """List what is held, waited for, or in its window.

    \b
      singleflight ls redis://redis/0
      SINGLEFLIGHT_URL=redis://redis/0 singleflight ls --json
    """  # noqa: D301 - Click reads the \b
    access, rest = open_access(words, url_file, prefix)
    if rest:
        raise Failure(
            f"ls takes a store's URL and nothing else; `singleflight show URL {rest[0]}` shows one", 2
        )
    actions.ls(access, everything=everything, as_json=as_json)


@click.command()
@click.argument("words", metavar="[URL] NAME [ARGUMENTS]", nargs=-1)
@JSON
@on_store
def show(words: tuple[str, ...], *, as_json: bool, prefix: str, url_file: Path | None) -> None:
    """Show all about one key: who holds it, since when, who waits, who ran last.

    NAME is a key as `ls` prints it, a lease as `run` takes it, a task, or the id of a run. A task's ARGUMENTS
    are those that make its key, as a JSON object; without them, all its keys are listed.

    \b
      singleflight show redis://redis/0/nightly
      singleflight show redis://redis/0 shop.recalculate:3f2a9c1b
      singleflight show redis://redis/0 shop.recalculate '{"account_id": 7}'
      singleflight show redis://redis/0 759d2cba-8f56-4fe2-8c19-036125fe96a8
    """  # noqa: D301 - Click reads the \b
    access, key = open_lease(words, url_file, prefix)
    actions.show(access, key, wanted=wanted_by(words), as_json=as_json)


@click.command()
@click.argument("words", metavar="[URL] NAME [ARGUMENTS]", nargs=-1)
@YES
@JSON
@on_store
def evict(words: tuple[str, ...], *, yes: bool, as_json: bool, prefix: str, url_file: Path | None) -> None:
    """End a lease by force, so that another run can start.

    A live holder learns at its next renewal that it has lost its lease: `singleflight run` ends its command,
    a task goes on (or is aborted, with on_lost="abort"). NAME and ARGUMENTS: see `singleflight show --help`.

    \b
      singleflight evict redis://redis/0 shop.recalculate:3f2a9c1b
      singleflight evict --yes redis://redis/0/nightly
    """  # noqa: D301 - Click reads the \b
    access, key = open_lease(words, url_file, prefix)
    actions.evict(access, key, yes=yes, as_json=as_json)


@click.command()
@click.argument("words", metavar="[URL]", nargs=-1)
@EVERY
@ALL
@JSON
@on_store
def watch(
    words: tuple[str, ...],
    *,
    every: float,
    everything: bool,
    as_json: bool,
    prefix: str,
    url_file: Path | None,
) -> None:
    """Watch leases come and go, until Ctrl-C.

    With --json, a line for every key that has changed.

    \b
      singleflight watch redis://redis/0
    """  # noqa: D301 - Click reads the \b
    access, rest = open_access(words, url_file, prefix)
    if rest:
        raise Failure("watch takes a store's URL and nothing else", 2)
    actions.watch(access, every=every, everything=everything, as_json=as_json)
