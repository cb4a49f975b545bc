"""Where leases live: one module per store, chosen by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singleflight.errors import ConfigurationError
from singleflight.stores.base import REMEMBER

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeIs

    from singleflight.stores.base import Store

STORE_TIMEOUT = 1.0
"""Seconds that one request to a store may take."""


def open_store(
    url: str, *, timeout: float = STORE_TIMEOUT, remember: float = REMEMBER, **options: Any
) -> Store:
    """Open the store that a URL names, by the scheme before ``://``.

    Stores register under the entry-point group ``singleflight.stores``: a callable that takes the URL,
    ``timeout`` (seconds for one request, built in 1), ``remember`` (seconds for which an ended run is
    recognised, built in 7200) and the store's own options. Nothing is connected before first use.

    Raises:
        ConfigurationError: for a URL that cannot be read, an unknown scheme, a missing driver.
    """
    # Here, because it alone would be a third of the time that `import singleflight` takes.
    from importlib.metadata import entry_points  # noqa: PLC0415

    check_readable(url)
    scheme = url.partition("://")[0].lower()
    for entry in entry_points(group="singleflight.stores", name=scheme):
        store: Store = entry.load()(url, timeout=timeout, remember=remember, **options)
        return store
    known = ", ".join(sorted(entry.name for entry in entry_points(group="singleflight.stores")))
    raise ConfigurationError(
        f"no store for the scheme {scheme!r}: write a URL such as redis://host:6379/0; known are {known}"
    )


def is_store(given: object) -> TypeIs[Store]:
    """Say whether this is a store, one's own or ours; what it does is held to the contract elsewhere."""
    operations = (getattr(given, name, None) for name in ("claim", "renew", "release", "peek"))
    return not isinstance(given, type) and all(map(callable, operations))


def as_store(
    given: Store | str | object, *, timeout: float = STORE_TIMEOUT, remember: float = REMEMBER, **options: Any
) -> Store:
    """Return the store that a caller means: a store as it is, a URL's, or that of a ready Redis client.

    The keywords are for URLs and clients; ``options`` for URLs.

    Raises:
        ConfigurationError: as `open_store`, and for anything else.
    """
    if isinstance(given, str):
        if "://" not in given:
            raise ConfigurationError(f"{given!r} is not a store URL; write one such as redis://host:6379/0")
        return open_store(given, timeout=timeout, remember=remember, **options)
    if is_store(given):
        return given
    if hasattr(given, "connection_pool") or hasattr(given, "nodes_manager"):  # redis-py's, valkey-py's
        from importlib import import_module  # noqa: PLC0415 - as above, and the driver is optional

        store: Store = import_module("singleflight.stores.redis").RedisStore.from_client(
            given, timeout=timeout, remember=remember
        )
        return store
    kind = given if isinstance(given, type) else type(given)
    raise ConfigurationError(
        f"{kind.__module__}.{kind.__qualname__} is no store; pass a URL such as redis://host:6379/0, a store "
        "such as singleflight.stores.redis.RedisStore(url), or a redis.Redis client"
    )


def risks_of(store: Store) -> list[str]:
    """Return what a store says is dangerous about its set-up, one sentence each; none if it says nothing."""
    risks: Callable[[], list[str]] | None = getattr(store, "risks", None)
    return [] if risks is None else risks()


def check_readable(url: str) -> None:
    """Refuse what is no URL, or one whose password would be taken for something else and then be shown.

    Raises:
        ConfigurationError: that shows nothing of it.
    """
    from urllib.parse import urlsplit  # noqa: PLC0415 - as above

    try:
        parts = urlsplit(url)
    except ValueError:
        readable = False
    else:
        # After a / # or ? in a password, what should be its host begins with the user, and the @ comes later.
        host, _, port = parts.netloc.rpartition(":")
        late = "@" in parts.path + parts.fragment or ("@" in parts.query and host and not port.isdigit())
        readable = "://" in url and not (late and parts.netloc and "@" not in parts.netloc)
    if not readable:
        raise ConfigurationError(
            "the store's URL cannot be read; write it as redis://user:password@host:6379/0, and in user and "
            "password %2F for a slash, %23 for #, %3F for ?, %40 for @"
        )
