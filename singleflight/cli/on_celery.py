"""``celery -A app singleflight ...``: the operators' commands with the app's own store, prefix and keys.

Here and not beside Celery's other parts, because the command line may use them and not the other way round.
Celery imports this module whenever ``celery`` starts, so it is light.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import click

from singleflight.cli.beat import COMMANDS as BEAT
from singleflight.cli.operators import actions
from singleflight.cli.operators.access import Access, wanted_by
from singleflight.cli.operators.commands import ALL, EVERY, JSON, YES
from singleflight.cli.output import Failure, spoken
from singleflight.errors import SingleflightError

if TYPE_CHECKING:
    from singleflight.key_rules import KeyRule


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Let no mistake of a user's become a traceback."""
        try:
            return super().invoke(ctx)
        except SingleflightError as error:
            raise click.ClickException(spoken(str(error))) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def singleflight(ctx: click.Context) -> None:
    """See who holds the leases of this app's tasks, and free them."""
    app = ctx.obj.app
    if not hasattr(app, "singleflight"):
        raise Failure("the app has no leases; call singleflight.celery.install(app) where the app is made")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # ours are doctor's findings
        app.loader.import_default_modules()
        app.finalize()


@singleflight.command()
@ALL
@JSON
@click.pass_context
def ls(ctx: click.Context, *, everything: bool, as_json: bool) -> None:
    """List what is held, waited for, or in its window."""
    actions.ls(_access(ctx), everything=everything, as_json=as_json)


@singleflight.command()
@click.argument("words", metavar="NAME [ARGUMENTS]", nargs=-1, required=True)
@JSON
@click.pass_context
def show(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:
    """Show all about one key: a key as `ls` prints it, a task, a run's id, or a task and its ARGUMENTS.

    The ARGUMENTS are a JSON object; of a task without them, all keys are listed.
    """
    access = _access(ctx)
    actions.show(access, access.key(words), wanted=wanted_by(words), as_json=as_json)


@singleflight.command()
@click.argument("words", metavar="NAME [ARGUMENTS]", nargs=-1, required=True)
@YES
@JSON
@click.pass_context
def evict(ctx: click.Context, words: tuple[str, ...], *, yes: bool, as_json: bool) -> None:
    """End a lease by force, so that another run can start; a live holder learns that it lost it."""
    access = _access(ctx)
    actions.evict(access, access.key(words), yes=yes, as_json=as_json)


@singleflight.command()
@EVERY
@ALL
@JSON
@click.pass_context
def watch(ctx: click.Context, *, every: float, everything: bool, as_json: bool) -> None:
    """Watch leases come and go, until Ctrl-C."""
    actions.watch(_access(ctx), every=every, everything=everything, as_json=as_json)


@singleflight.command()
@JSON
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Check whether this app's set-up and its store are fit for leases; exit code 1 if not."""
    from singleflight.cli.doctor.command import of_celery, report  # noqa: PLC0415 - only this command needs it

    report(of_celery(ctx.obj.app, None), as_json=as_json)


@singleflight.group()
@click.pass_context
def beat(ctx: click.Context) -> None:
    """See and steer the entries of this app's beat."""
    ctx.obj = ctx.obj.app


for command in BEAT:
    beat.add_command(command)


def _access(ctx: click.Context) -> Access:
    from singleflight.celery.runtime import key_rule  # noqa: PLC0415 - not while Celery itself starts

    app = ctx.obj.app
    runtime = app.singleflight

    def rule(name: str) -> KeyRule | None:
        task = app.tasks.get(name)
        if task is None or (policy := runtime.policy(task)) is None:
            return None
        return key_rule(runtime.prefix, task, policy)

    return Access(runtime.leases.store, runtime.prefix, rule)
