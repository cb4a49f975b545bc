"""A switch that is on inside of a ``with`` block, for one thread, or one task of an event loop."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Switch:
    """True while it is on."""

    def __init__(self, name: str) -> None:
        self._on: ContextVar[bool] = ContextVar(name, default=False)

    def __bool__(self) -> bool:
        return self._on.get()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Turn it on for a block."""
        token = self._on.set(True)
        try:
            yield
        finally:
            self._on.reset(token)
