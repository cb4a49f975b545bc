"""Foreign text on its way to a terminal or a log line: ids, names and holders are anybody's words."""

from __future__ import annotations

LONGEST = 200
"""Characters of one foreign text that are shown."""


def printable(text: object, longest: int = LONGEST) -> str:
    r"""Return a text in one line that no terminal obeys: what is not printable stands as an escape, ``\x1b``.

    Args:
        text: the text, or anything else that has one.
        longest: how many characters are shown; the rest is left out, and ``...`` says so.
    """
    try:
        shown = text if isinstance(text, str) else str(text)
    except Exception as error:  # noqa: BLE001 - a foreign object may do anything, and this is only for people
        shown = f"<{type(text).__name__} that raises {type(error).__name__}>"
    if len(shown) > longest:
        shown = f"{shown[:longest]}..."
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
