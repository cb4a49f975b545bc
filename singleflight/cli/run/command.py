"""The command ``singleflight run``: a lease around any command, for cron jobs and containers."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path
from typing import NoReturn

import click

from singleflight.api import PREFIX
from singleflight.cli.address import locate
from singleflight.cli.exits import Exit
from singleflight.cli.output import Failure, keep_secret
from singleflight.cli.parameters import duration, time
from singleflight.cli.run.execution import Plan, carry_out
from singleflight.cli.run.guard import FOR_EVER, Limits
from singleflight.cli.run.signals import Signals, end_by
from singleflight.cli.run.terminal import Terminal
from singleflight.cli.settings import store_url
from singleflight.errors import ConfigurationError
from singleflight.keys import lease_key
from singleflight.leases.claiming import Request, new_token
from singleflight.leases.keeper import process_keeper
from singleflight.policy import Singleton, resolve

STDERR = 2

HELP = """Run a command while holding a lease, so that no other host runs it too.

The URL's last part names the lease; a bare NAME belongs to the store in SINGLEFLIGHT_URL or --url-file. A
task called NAME, without arguments in its key, shares the lease. Of -n and -N, and of -x and -X, the last
one counts, as with setlock.

\b
  singleflight run -n redis://redis/0/nightly -- ./nightly.sh
  singleflight run --wait 5m --timeout 1h --url-file /etc/singleflight.url import ./import.sh
  singleflight run -x --occurrence "$(date -u +%FT%H:00Z)" redis://redis/0/hourly ./hourly.sh

Exit codes: the command's own, or 128+N if signal N ended it; 111 not granted, 112 lease lost, 113 store
error, 124 --timeout, 100 usage, 126 not executable, 127 not found.
"""


# Nothing is read beyond the URL: the command's options are its own.
@click.command(help=HELP, context_settings={"allow_interspersed_args": False})
@click.option(
    "-n/-N", "at_once", default=None, help="Give up if the lease is taken; -N waits.  [default: -N]"
)
@click.option("-x/-X", "quiet", default=False, help="Exit 0 if it is not granted; -X fails.  [default: -X]")
@click.option("-E", "code", type=click.IntRange(0, 255), help="Exit code if not granted.  [default: 111]")
@click.option("--wait", type=duration, help="Give up after this long.  [default: never]")
@click.option("--ttl", type=duration, default="30s", show_default=True, help="How long a dead host blocks.")
@click.option("--window", type=duration, default="0", help="No other start within this long of a start.")
@click.option("--occurrence", type=time, help="The planned time: each is run once, by whichever host.")
@click.option("--timeout", type=duration, help="End the command after this long.  [default: never]")
@click.option(
    "--kill-after",
    type=duration,
    help="From TERM to KILL, at --timeout and at a lost lease; if given, also after a TERM that is sent to "
    "singleflight. At most a third of the ttl.  [default: 5s, or a sixth of the ttl if that is less]",
)
@click.option("--prefix", envvar="SINGLEFLIGHT_PREFIX", default=PREFIX, help="What all keys start with.")
@click.option(
    "--url-file", type=click.Path(dir_okay=False, path_type=Path), help="File with the store's URL."
)
@click.argument("url", metavar="URL|NAME")
@click.argument("argv", metavar="[--] COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
def run(
    url: str,
    argv: tuple[str, ...],
    *,
    at_once: bool | None,
    quiet: bool,
    code: int | None,
    wait: float | None,
    ttl: float,
    window: float,
    occurrence: str | None,
    timeout: float | None,
    kill_after: float | None,
    prefix: str,
    url_file: Path | None,
) -> NoReturn:
    """Read the options into a plan and carry it out."""
    keep_secret(url)
    if at_once and wait is not None:
        raise Failure("-n gives up at once and --wait does not; leave one of them out", Exit.USAGE)
    if quiet and code is not None:
        raise Failure("-x exits 0 and -E asks for another code; leave one of them out", Exit.USAGE)
    argv = argv[1:] if argv[0] == "--" else argv
    if not argv:
        raise Failure("there is nothing to run; write the command after the URL", Exit.USAGE)
    if argv[0].startswith("-"):
        raise Failure(f"{argv[0]} stands after the URL; write the options of run before it", Exit.USAGE)
    try:
        policy = resolve(Singleton(ttl=ttl, window=window))  # refuses wrong values by name
        address = locate(url, store_url(url, url_file))
        key = lease_key(prefix, address.name)
    except ConfigurationError as error:
        raise Failure(str(error), Exit.USAGE) from error
    plan = Plan(
        store=address.store,
        request=Request(
            key=key,
            task=address.name,
            run_id=occurrence or str(uuid.uuid4()),
            token=new_token(),
            ttl=policy.ttl,
            window=policy.window,
        ),
        wait=0 if at_once else FOR_EVER if wait is None else wait,
        limits=_limits(timeout, kill_after, policy.ttl),
        conflict=0 if quiet else Exit.CONFLICT if code is None else code,
        planned=occurrence is not None,
        argv=argv,
    )
    _occupy_closed_descriptors()
    with Signals() as signals:
        terminal = Terminal.open()
        at_terminal = terminal is not None and terminal.ours
        code = carry_out(plan, signals, terminal)
    if at_terminal and code in (Exit.signalled(signal.SIGINT), Exit.signalled(signal.SIGQUIT)):
        # A shell whose child ends by Ctrl-C ends its own loop or script too; an exit code would not do.
        process_keeper().stop()
        end_by(code - Exit.signalled(0))
    sys.exit(code)


def _limits(timeout: float | None, kill_after: float | None, ttl: float) -> Limits:
    if timeout == 0:
        raise Failure("--timeout 0 leaves no time to run; leave it out for no limit", Exit.USAGE)
    if kill_after is not None and kill_after > ttl / 3:
        raise Failure(
            f"--kill-after {kill_after:g} must be over before a lease of --ttl {ttl:g} could pass on: "
            f"at most {ttl / 3:g}; give a longer --ttl",
            Exit.USAGE,
        )
    return Limits(
        timeout=FOR_EVER if timeout is None else timeout,
        kill_after=min(5.0, ttl / 6) if kill_after is None else kill_after,
        escalate=kill_after is not None,
    )


def _occupy_closed_descriptors() -> None:
    """Let no socket become stdin, stdout or stderr; these are closed again in the command."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)
