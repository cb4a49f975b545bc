"""The command ``init``: make the tables of a store, or say which rights it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from singleflight.cli.inspect import on_store
from singleflight.cli.voice import Failure, keep_secret, spoken
from singleflight.cli.where import store_url

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("url", required=False, default="")
@click.option("--print", "printing", is_flag=True, help="Change nothing; print what to run, or to grant.")
@on_store
def init(url: str, *, printing: bool, prefix: str, url_file: Path | None) -> None:
    """Make the tables that a SQL or DynamoDB store needs; safe to repeat.

    With --print, the statements for a database, the least policy for DynamoDB, or the least rights of a
    Redis user, who needs no tables.

    \b
      singleflight init postgresql://owner@db/app
      singleflight init --print dynamodb://leases?region=eu-west-1
      singleflight init --print redis://redis/0
    """  # noqa: D301 - Click reads the \b
    keep_secret(url)
    url = url or store_url(url, url_file) or ""
    scheme = url.partition("://")[0].lower()
    lines = ["the tables are there"]
    if scheme in ("dynamodb", "ddb"):
        from singleflight.stores import dynamodb_setup  # noqa: PLC0415 - each needs its own driver

        if printing:
            lines = [dynamodb_setup.least_policy(url)]
        else:
            dynamodb_setup.create_table(url)
    elif scheme.startswith(("postgres", "mysql", "mariadb", "sqlite")):
        from singleflight.stores import sql_setup  # noqa: PLC0415

        if printing:
            lines = [f"{statement};" for statement in sql_setup.statements(url)]
        else:
            sql_setup.create_tables(url)
    elif scheme.startswith(("redis", "valkey", "unix")):
        from singleflight.stores.redis_errors import COMMANDS  # noqa: PLC0415

        rights = " ".join(f"+{command}" for command in COMMANDS)
        lines = [
            f"ACL SETUSER singleflight on >PASSWORD ~{prefix}:* resetchannels -@all {rights}",
            "# for operators, besides: +scan for ls and watch, +info +config|get for doctor",
        ]
    else:
        raise Failure("which store? write its URL, such as postgresql://owner@db/app", 2)
    for line in lines:
        click.echo(spoken(line))
