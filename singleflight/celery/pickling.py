"""Take an app's leases along to a process that is not forked.

Under the start methods ``spawn`` and ``forkserver``, Celery pickles its app into each pool process and into
the embedded beat, and a pickled app is its configuration only. Here it also carries what `install` was given.
What cannot be pickled is refused in the process that wants to send it: a worker ends with that error before
it has taken a message.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.reduction import ForkingPickler

from singleflight.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

    Installer = Callable[..., None]


def carry_along(app: Celery, install: Installer) -> None:
    """Have ``install`` called again on each copy of an app that is made by pickling.

    On the object and not by ``app.fixups``: those are lost by apps with a ``__reduce_args__`` of their own.
    """
    app.__reduce__ = partial(_reduce, app, install)


def _reduce(app: Celery, install: Installer) -> tuple[Any, ...]:
    kind: Any = type(app)
    rebuild, arguments = kind.__reduce__(app)
    store, given = app.singleflight.given
    _check(f"store ({type(store).__qualname__})", store, "pass its URL")
    for name, value in given.items():
        _check(f"{name}={value!r}", value, "name what stands at the top of a module")
    return _restore, (rebuild, arguments, install, store, given)


def _check(what: str, value: Any, remedy: str) -> None:
    """Refuse what cannot be pickled.

    Raises:
        ConfigurationError: naming it.
    """
    try:
        ForkingPickler.dumps(value)
    except Exception as error:  # noqa: BLE001 - an object may raise anything
        raise ConfigurationError(
            f"install() was given a {what} that cannot be sent to a process that is not forked ({error}): "
            f"{remedy}, or start the worker's processes with the method 'fork'"
        ) from None


def _restore(
    rebuild: Callable[..., Celery],
    arguments: tuple[Any, ...],
    install: Installer,
    store: Any,
    given: Mapping[str, Any],
) -> Celery:
    app = rebuild(*arguments)
    install(app, store, **given)
    return app
