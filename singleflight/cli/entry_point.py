"""The way in: which command it is, and one line for whatever goes wrong."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from singleflight.cli.exits import Exit
from singleflight.cli.group import group
from singleflight.cli.output import Failure, call_it, on_stderr, speak
from singleflight.cli.run.command import run
from singleflight.errors import SingleflightError


def enter(program: str) -> NoReturn:
    """Run the command that the arguments name and exit; nobody meets a traceback for a mistake of theirs."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, as any other program
    call_it(program)
    command = run if program == "setlock" else group
    try:
        code = command.main(prog_name=program, standalone_mode=False)
    except click.UsageError as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            with on_stderr():
                error.show()
        else:
            speak(f"{error.format_message().removesuffix('.')}; see {_path(error)} --help")
        sys.exit(Exit.USAGE if error.ctx is not None and error.ctx.command is run else error.exit_code)
    except Failure as error:
        speak(error.format_message())
        sys.exit(error.code)
    except click.ClickException as error:
        speak(error.format_message())
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(1)
    except SingleflightError as error:
        speak(str(error))
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output has enough; Python must not complain when it flushes.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        sys.exit(1)
    except OSError as error:
        speak(f"cannot write the output: {error.strerror or error}")
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - or the end of Python would fail at it once more
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _path(error: click.UsageError) -> str:
    return error.ctx.command_path if error.ctx is not None else "singleflight"
