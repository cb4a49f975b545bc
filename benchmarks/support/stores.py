"""Stores besides Redis, as far as this machine has them."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from demo.children import Child, Children
from demo.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

START = 20.0
"""Seconds in which the emulator must answer."""


@contextmanager
def other_stores(*, quick: bool) -> Iterator[dict[str, str]]:
    """Start what there is, and return the URLs by name; none when there is little time."""
    with ExitStack() as stack:
        urls: dict[str, str] = {}
        if not quick and importlib.util.find_spec("sqlalchemy"):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            urls["SQLite"] = f"sqlite:///{folder}/leases.db"
            _tables(urls["SQLite"])
        if given := os.environ.get("BENCH_POSTGRESQL"):
            urls["PostgreSQL"] = given
            _tables(given)
        if not quick and importlib.util.find_spec("ministack") and importlib.util.find_spec("boto3"):
            urls["DynamoDB emulator"] = _emulator(stack.enter_context(Children()))
        yield urls


def _tables(url: str) -> None:
    from singleflight.stores.sql import SqlStore  # noqa: PLC0415 - optional

    SqlStore(url).set_up()


def _emulator(children: Children) -> str:
    port = free_port()
    own = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(keys)
    argv = [str(Path(sys.executable).parent / "ministack")]
    child = children.add(Child("ministack", argv, env={**os.environ, **own}))
    from singleflight.errors import SingleflightError  # noqa: PLC0415 - optional, as the next one
    from singleflight.stores.dynamodb import DynamoStore  # noqa: PLC0415

    url = f"dynamodb://leases?region=us-east-1&endpoint=http://127.0.0.1:{port}"
    deadline = time.monotonic() + START
    while True:
        try:
            DynamoStore.from_url(url).set_up()
        except SingleflightError:
            if not child.alive or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return url
