"""What the command line says on stderr: one line each, and never a password."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from singleflight.cli.address import hidden, secrets_in
from singleflight.log import logger
from singleflight.printable import printable

MOST_SAID = 10_000
"""Characters of one text."""

if TYPE_CHECKING:
    from collections.abc import Iterator


class Failure(click.ClickException):
    """Raised to end with one line and an exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code

    def format_message(self) -> str:
        """Return the line; Click shows it itself where ``celery`` was the program."""
        return spoken(self.message)


class _Known:
    """The one piece of global state: this process's name, and what it may not show."""

    secrets: ClassVar[list[str]] = []
    program: ClassVar[str] = "singleflight"


def call_it(program: str) -> None:
    """Begin each line with the name that the program was called by."""
    _Known.program = program


def keep_secret(url: str) -> None:
    """Let no password of a store's URL show in anything that is said from now on."""
    _Known.secrets += secrets_in(url)


def spoken(text: str) -> str:
    """Return a text as it may be shown: one line, no password, nothing that a terminal obeys."""
    return printable(hidden(" ".join(text.split()), _Known.secrets), MOST_SAID)


def speak(text: str) -> None:
    """Say one line on stderr."""
    with on_stderr():
        click.echo(f"{_Known.program}: {spoken(text)}", err=True)


@contextmanager
def on_stderr() -> Iterator[None]:
    """Surround what writes to stderr: a full disk or a closed pipe costs the text and nothing else."""
    try:
        yield
    except (OSError, ValueError):
        # What is left of the text must not fail again at the end of Python, which would make the code 120.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the end


class _Speaking(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        speak(self.format(record))


def speak_of_leases(level: int) -> None:
    """Say what happens to leases, from a log level on; nothing else writes to stderr."""
    logger.logger.handlers[:] = [_Speaking(level)]
    logger.logger.propagate = False
