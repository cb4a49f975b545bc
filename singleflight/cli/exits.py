"""The exit codes of ``singleflight run``; everything else is the command's own."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Why `run` ends with a code that is not the command's."""

    USAGE = 100
    CONFLICT = 111
    LOST = 112
    STORE = 113
    TIMEOUT = 124
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127

    @staticmethod
    def signalled(number: int) -> int:
        """Return the code for an end by a signal, as shells count."""
        return 128 + number
