"""Identical processes of which one generates messages and all handle them."""

from __future__ import annotations

import argparse
import logging
import os

from rich.console import Console

from examples.dramatiq_app.account import Account
from examples.dramatiq_app.process import Options, Process
from examples.dramatiq_app.supervisor import compare, counted, show


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m examples.dramatiq_app", description=__doc__)
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two messages (0.5)")
    parser.add_argument("--threads", type=int, default=8, help="threads that handle, per process (8)")
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
    url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
    options = Options(
        url=url,
        run=given.run or ("" if given.count else "live"),
        count=given.count,
        interval=given.interval,
        threads=given.threads,
        guarded=not given.plain,
        generates=not given.handle_only,
    )
    console = Console()
    if given.get_errors:
        for error in Account(url, options.run).take_errors():
            print(error)
    elif given.count and given.compare and not given.run:
        compare(options, given.processes, console)
    elif given.count and not given.run:
        totals, rate = counted(options, given.processes, kill=given.kill_generator, console=console)
        show(totals, rate, console)
        raise SystemExit(0 if (totals.lost, totals.doubled) == (0, 0) else 1)
    else:
        level = logging.INFO if given.interval else logging.WARNING
        logging.basicConfig(level=level, format="%(asctime)s %(process)d %(message)s")
        logging.getLogger("dramatiq").setLevel(logging.WARNING)
        Process(options).run()


if __name__ == "__main__":
    main()
