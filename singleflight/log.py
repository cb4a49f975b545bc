"""The log ``singleflight``: what is foreign is escaped, and a filter or handler that fails breaks nothing."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from typing import Any

from singleflight.errors import LeaseLost
from singleflight.printable import printable

MOST_SAID = 2000
"""Characters of one argument of a log line."""


class _Escaping(logging.Filter):
    """Lets nothing foreign into a log line that a terminal would obey, or that looks like another line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                arg if isinstance(arg, int | float | None) else printable(arg, MOST_SAID)
                for arg in record.args
            )
        return True


STRIKES: list[type[BaseException]] = [LeaseLost]
"""Errors that are raised into a thread from outside, to end what it does; frameworks add their own."""


def struck(error: BaseException) -> bool:
    """Whether an error was raised into this thread from outside: then no guard may swallow it.

    Such an error has no text, because Python makes it from its class alone.
    """
    return isinstance(error, tuple(STRIKES)) and not error.args


class Logger(logging.LoggerAdapter[logging.Logger]):
    """The logger ``singleflight``, whose filters and handlers may fail without harm to whoever logs.

    They are the user's code, and run in the middle of ours, a thread that renews leases among them.
    """

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Write a line to the log; if that fails, to stderr."""
        if not self.logger.isEnabledFor(level):
            return
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        try:
            self.logger.log(level, msg, *args, **kwargs)
        except Exception as error:
            if struck(error):
                raise
            # As `logging` does with the errors of its handlers; beyond stderr there is nobody left to tell.
            with suppress(Exception):
                line = str(msg) % args if args else msg
                sys.stderr.write(
                    f"{printable(line, MOST_SAID)}\n{''.join(traceback.format_exception(error))}"
                )


logger = Logger(logging.getLogger("singleflight"))
logger.logger.addFilter(_Escaping())
