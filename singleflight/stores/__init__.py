"""Where leases live: one module per store, chosen by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singleflight.errors import ConfigurationError
from singleflight.stores.base import REMEMBER

if TYPE_CHECKING:
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
        ConfigurationError: for an unknown scheme, or a driver that is not installed.
    """
    # Here, because it alone would be a third of the time that `import singleflight` takes.
    from importlib.metadata import entry_points  # noqa: PLC0415

    scheme = url.partition("://")[0].lower()
    for entry in entry_points(group="singleflight.stores", name=scheme):
        store: Store = entry.load()(url, timeout=timeout, remember=remember, **options)
        return store
    known = sorted(entry.name for entry in entry_points(group="singleflight.stores"))
    raise ConfigurationError(
        f"no store for the scheme {scheme!r}; known are {', '.join(known)}. Write a URL such as redis://host:6379/0"
    )
