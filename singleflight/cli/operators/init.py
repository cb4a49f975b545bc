"""The command ``init``: make the tables of a store, or say which rights it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from singleflight.cli.operators.commands import on_store
from singleflight.cli.output import Failure, keep_secret
from singleflight.cli.settings import store_url

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = "workers, beats, publishers, and singleflight run"
OPERATORS = "operators: ls, show, evict, watch, doctor"
LOOKERS = "operators who only look: ls, show, watch; evict and doctor need what workers need"


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
    keep_secret(url)
    url = url or store_url(url, url_file) or ""
    scheme = url.partition("://")[0].lower()
    lines = ["the tables are there"]
    if scheme in ("dynamodb", "ddb"):
        from singleflight.stores.dynamodb import setup as dynamodb  # noqa: PLC0415 - each needs its own driver

        if printing:
            workers, operators = (dynamodb.least_policy(url, listing=each) for each in (False, True))
            lines = [f"# {WORKERS}", workers, f"# {OPERATORS}", operators]
        else:
            dynamodb.create_table(url)
    elif scheme.startswith(("postgres", "mysql", "mariadb", "sqlite")):
        from singleflight.stores.sql import setup as sql  # noqa: PLC0415

        if printing:
            lines = [f"{statement};" for statement in sql.statements(url)]
            if not scheme.startswith("sqlite"):
                lines += sql.grants("SELECT, INSERT, UPDATE, DELETE", "singleflight", WORKERS)
                lines += sql.grants("SELECT", "operator", LOOKERS)
        else:
            sql.create_tables(url)
    elif scheme.startswith(("redis", "valkey", "unix", "sentinel")):
        from singleflight.stores.redis.store import RedisStore  # noqa: PLC0415

        rights = " ".join(f"+{name}" for name in RedisStore(url).commands)
        user = f"on >PASSWORD ~{prefix}:* resetchannels -@all {rights}"
        lines = [f"# {WORKERS}", f"ACL SETUSER singleflight {user}"]
        lines += [f"# {OPERATORS}", f"ACL SETUSER operator {user} +scan +info +config|get"]
    else:
        raise Failure("which store? write its URL, such as postgresql://owner@db/app", 2)
    click.echo("\n".join(lines))
