"""What the command line says on stderr: one line each, and never a password."""

from __future__ import annotations

import logging
from typing import ClassVar

import click

from singleflight.cli.address import hidden, secrets_in
from singleflight.events import logger


class Failure(click.ClickException):
    """Raised to end with one line and an exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


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
    """Return a text as it may be shown."""
    return hidden(text, _Known.secrets)


def speak(text: str) -> None:
    """Say one line on stderr."""
    click.echo(f"{_Known.program}: {' '.join(spoken(text).split())}", err=True)


class _Speaking(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        speak(self.format(record))


def speak_of_leases(level: int) -> None:
    """Say what happens to leases, from a log level on; nothing else writes to stderr."""
    logger.logger.handlers[:] = [_Speaking(level)]
    logger.logger.propagate = False
