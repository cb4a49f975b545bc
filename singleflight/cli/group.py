"""The Click group that every command of ``singleflight`` belongs to."""

from __future__ import annotations

import click

from singleflight.cli.beat import beat
from singleflight.cli.doctor.command import doctor
from singleflight.cli.operators.commands import evict, ls, show, watch
from singleflight.cli.operators.init import init
from singleflight.cli.run.command import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="singleflight-tasks", prog_name="singleflight")
def group() -> None:
    """One run at a time, on every worker and every replica."""


for command in (run, ls, show, evict, watch, doctor, init, beat):
    group.add_command(command)
