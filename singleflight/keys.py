"""What a key is made of: a prefix, what people can read of a name, and a digest of all that counts; pure."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from singleflight.canonical import chunk, join, text
from singleflight.errors import ConfigurationError

MAX_PREFIX = 100
MAX_READABLE = 60
MAX_KEY = MAX_PREFIX + 1 + MAX_READABLE + 1 + 34
"""No key has more characters than this; stores may rely on it."""


def lease_key(prefix: str, name: str) -> str:
    """Return the key of a plain lease; a task of that ``name`` with ``by=()`` has the same.

    Raises:
        ConfigurationError: if the name is empty or no text, or the prefix cannot stand in a key.
    """
    check_prefix(prefix)
    if not name.strip():
        raise ConfigurationError(f"name={name!r} names no lease; give a non-empty text, such as 'nightly'")
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise ConfigurationError(f"name={name!r} has bytes that are no UTF-8, which not every store can keep")
    return key_text(prefix, name, [])


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that cannot stand in a key; a `ConfigurationError`."""
    printable = prefix.isprintable() and " " not in prefix
    if not prefix or len(prefix) > MAX_PREFIX or not printable:
        raise ConfigurationError(
            f"prefix={prefix[:MAX_PREFIX]!r} cannot begin a key; give 1 to {MAX_PREFIX} characters, no blanks"
        )


def key_text(prefix: str, name: str, arguments: list[bytes]) -> str:
    """Return the key of a name with arguments, each of them encoded."""
    whole = join(b"k", [text(name), *(chunk(b"a", argument) for argument in arguments)])
    digest = hashlib.sha256(whole).hexdigest()[:32]
    return f"{stem(prefix, name)}{{{digest}}}"


def stem(prefix: str, name: str) -> str:
    """Return how all keys of that name begin."""
    return f"{prefix}:{readable(name)}:"


@lru_cache(maxsize=1024)
def readable(name: str) -> str:
    """Return what of a name stands in its keys."""
    # "script" cannot form a new "__main__" with what stands around it.
    readable = name.replace("__main__", "script")[-MAX_READABLE:]
    return "".join(c if c.isprintable() and c not in " {}:" else "_" for c in readable)
