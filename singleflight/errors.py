"""The error tree; every argument is text, because result backends rebuild errors from their args.

SingleflightError
 ├── ConfigurationError   an option, URL or server set-up that cannot work
 │    └── NotInstalled    a framework or a driver is missing; also a ModuleNotFoundError
 ├── Conflict             another run holds the key, and ``on_conflict="raise"``
 ├── Skipped              the outcome of a duplicate that was skipped
 ├── LeaseLost            this delivery no longer holds its lease
 └── StoreUnavailable     the store did not answer, or not in time
"""

from __future__ import annotations

from typing import Self

from singleflight.answers import Busy


class SingleflightError(Exception):
    """Root of every error that singleflight raises."""


class ConfigurationError(SingleflightError, ValueError):
    """Raised when an option, a URL or a server's set-up can never work.

    It is permanent: trying again does not help, so no ``on_store_error`` policy hides it.
    """


class NotInstalled(ModuleNotFoundError, ConfigurationError):
    """Raised when a package is missing that an extra brings; `name` is the package."""

    @classmethod
    def of(cls, package: str, extra: str, remedy: str = "") -> Self:
        """Name the package and what to type; ``remedy`` is what else would help."""
        text = f'{package} is not installed; type: pip install "singleflight-tasks[{extra}]"{remedy}'
        return cls(text, name=package)


class Conflict(SingleflightError):
    """Raised when another run holds the key and the task said ``on_conflict="raise"``, or a wait is over.

    `busy` tells who is in the way: ``run_id``, ``reason``, ``holder``, ``since``. It is kept as text among
    the arguments, so it survives pickling and whatever rebuilds errors from their arguments.
    """

    def __init__(self, text: str = "", busy: Busy | str = "") -> None:
        """Say what happened, and who is in the way: a `Busy`, or the text of one."""
        kept = busy.encode() if isinstance(busy, Busy) else busy
        super().__init__(text, *([kept] if kept else []))

    @property
    def busy(self) -> Busy | None:
        """Who is in the way; None if this was raised without that."""
        return Busy.decode(self.args[1]) if len(self.args) > 1 else None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Skipped(SingleflightError):
    """Stored as the outcome of a run that was skipped as a duplicate."""


class LeaseLost(SingleflightError):
    """Raised when a delivery asks for a lease that it no longer holds."""


class StoreUnavailable(SingleflightError):
    """Raised when the store gives no answer in time; says nothing about who holds a key."""
