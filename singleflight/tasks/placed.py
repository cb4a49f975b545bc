"""Warnings that point to a task's function, in its author's file."""

from __future__ import annotations

import inspect
import warnings


def warn_at(function: object, text: str) -> None:
    """Warn where a function is declared, below its decorators; as Python's filters say, and so once.

    ``stacklevel`` cannot do it: frameworks evaluate a declaration later, and from a place of their own.
    """
    own = inspect.unwrap(function) if callable(function) else function
    code, names = getattr(own, "__code__", None), getattr(own, "__globals__", None)
    if code is None or names is None:
        warnings.warn(text, stacklevel=2)
        return
    warnings.warn_explicit(
        text, UserWarning, code.co_filename, code.co_firstlineno,
        module=names.get("__name__"), registry=names.setdefault("__warningregistry__", {}),
    )  # fmt: skip
