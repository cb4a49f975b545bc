"""Identical processes of which one generates messages and all handle them."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

import redis
from rich.console import Console

from examples.dramatiq_app.account import Account
from examples.dramatiq_app.process import Options, Process
from examples.dramatiq_app.supervisor import compare, counted, show


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m examples.dramatiq_app", description=__doc__)
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two messages (0.5)")
    parser.add_argument("--ttl", type=float, default=5, help="seconds until a dead generator is replaced (5)")
    parser.add_argument("--threads", type=int, default=4, help="threads that handle, per process (4)")
    parser.add_argument("--count", type=int, help="start processes, stop after so many messages, and account")
    parser.add_argument("--processes", type=int, default=2, help="with --count: how many processes (2)")
    parser.add_argument("--kill-generator", action="store_true", help="with --count: kill -9 it halfway")
    parser.add_argument("--compare", action="store_true", help="with --count: the same without singleflight")
    parser.add_argument(
        "--get-errors", action="store_true", help="print and forget the faulty ones, and exit"
    )
    for internal in ("--run", "--plain", "--handle-only"):
        action = "store" if internal == "--run" else "store_true"
        parser.add_argument(internal, action=action, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count is not None and given.count < 1:
        parser.error("--count is at least 1")
    options = Options(
        url=os.environ.get("REDIS_URL", "redis://localhost:6379/0"),
        run=given.run or ("" if given.count else "live"),
        count=given.count,
        interval=given.interval,
        ttl=given.ttl,
        threads=given.threads,
        guarded=not given.plain,
        generates=not given.handle_only,
    )
    try:
        with redis.Redis.from_url(options.url) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        sys.exit(
            f"no server: {error}\nStart Redis or Valkey, or name another one: export REDIS_URL=redis://..."
        )
    console = Console()
    if given.get_errors:
        errors = Account(options.url, options.run).take_errors()
        for error in errors:
            print(error)
        print(f"{len(errors)} faulty messages, now forgotten", file=sys.stderr)
        return
    if given.run or not given.count:
        log_to_stderr(logging.INFO if given.interval else logging.ERROR)
        Process(options).run()
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not before the processes have ended
    try:
        if given.compare:
            compare(options, given.processes, console)
        else:
            totals, rate = counted(options, given.processes, kill=given.kill_generator, console=console)
            show(totals, rate, console)
            sys.exit(0 if (totals.lost, totals.doubled) == (0, 0) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def log_to_stderr(level: int) -> None:
    """Show what the example says, and of the libraries only what has gone wrong."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(process)d %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("example").setLevel(level)
    logging.getLogger("singleflight").setLevel(logging.ERROR)  # the example tells of these in its own words


if __name__ == "__main__":
    main()
