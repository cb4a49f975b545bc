"""The command ``init``: make the tables of a store, or say which rights it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from singleflight.cli.operators.access import open_store_of
from singleflight.cli.operators.commands import on_store
from singleflight.cli.output import Failure
from singleflight.stores.optional import SetUp

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("url", required=False, default="")
@click.option("--print", "printing", is_flag=True, help="Change nothing; print what to run, or to grant.")
@on_store
def init(url: str, *, printing: bool, prefix: str, url_file: Path | None) -> None:
    """Make the tables that a SQL or DynamoDB store needs; safe to repeat.

    With --print, the statements for a database, the policies for DynamoDB, or the users for Redis, which
    needs no tables; each with the least rights, of workers and of operators.

    \b
      singleflight init postgresql://owner@db/app
      singleflight init --print dynamodb://leases?region=eu-west-1
      singleflight init --print redis://redis/0
    """  # noqa: D301 - Click reads the \b
    store, _ = open_store_of([url] if url else [], url_file)
    if not isinstance(store, SetUp):
        raise Failure("this store says nothing of how it is set up")
    made = False if printing else store.set_up()
    click.echo("the tables are there" if made else "\n".join(store.instructions(prefix)))
