"""singleflight's errors as Dramatiq needs them: any other exception in a before-hook would be swallowed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dramatiq.middleware import Interrupt, MiddlewareError, SkipMessage

from singleflight import errors

if TYPE_CHECKING:
    from collections.abc import Iterator


class ConfigurationError(errors.ConfigurationError, MiddlewareError):
    """Raised at declaration, at boot or when sending, for what can never work."""


class Conflict(errors.Conflict, MiddlewareError):
    """The failure of a duplicate under ``on_conflict="raise"``; it is not retried."""


class StoreUnavailable(errors.StoreUnavailable, MiddlewareError):
    """The failure of a message under ``on_store_error="raise"``; it is not retried."""


class JoinedFailure(errors.SingleflightError, MiddlewareError):
    """Raised in the place of a run that has joined another one which failed; it is not retried."""


class ClaimFailed(errors.SingleflightError, MiddlewareError):
    """Raised when a claim failed in a way that nobody expected; retried, as any failure of an actor."""


class LeaseLost(errors.LeaseLost, Interrupt):
    """Raised in a running actor under ``on_lost="abort"``, as Dramatiq raises its time limit."""


class Ended(SkipMessage):
    """Tells Dramatiq that this delivery is over and that its outcome is written, or still to come."""


NOT_RETRIED = (ConfigurationError, Conflict, JoinedFailure, StoreUnavailable)
"""Added to the ``throws`` of every singleton actor: such a message goes to the dead letters at once."""


@contextmanager
def translated(subject: str) -> Iterator[None]:
    """Turn our errors into the kind that Dramatiq lets through."""
    try:
        yield
    except MiddlewareError:
        raise
    except errors.StoreUnavailable as error:
        raise StoreUnavailable(f"{subject}: {error}") from error
    except errors.Conflict as error:
        raise Conflict(f"{subject}: {error}", error.busy or "") from error
    except errors.SingleflightError as error:
        raise ConfigurationError(f"{subject}: {error}") from error


@contextmanager
def unswallowed(subject: str) -> Iterator[None]:
    """Do so for every error: of another one in a before-hook Dramatiq would run the actor without a lease."""
    with translated(subject):
        try:
            yield
        except (MiddlewareError, errors.SingleflightError):
            raise
        except Exception as error:
            raise ClaimFailed(f"{subject}: unexpected {type(error).__name__}: {error}") from error
