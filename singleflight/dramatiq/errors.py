"""singleflight's errors as Dramatiq needs them: any other exception in a before-hook would be swallowed."""

from dramatiq.middleware import Interrupt, MiddlewareError, SkipMessage

from singleflight import errors


class ConfigurationError(errors.ConfigurationError, MiddlewareError):
    """Raised at declaration, at boot or when sending, for what can never work."""


class Conflict(errors.Conflict, MiddlewareError):
    """The failure of a duplicate under ``on_conflict="raise"``; it is not retried."""


class StoreUnavailable(errors.StoreUnavailable, MiddlewareError):
    """The failure of a message under ``on_store_error="raise"``; it is not retried."""


class ClaimFailed(errors.SingleflightError, MiddlewareError):
    """Raised when a claim failed in a way that nobody expected; retried, as any failure of an actor."""


class LeaseLost(errors.LeaseLost, Interrupt):
    """Raised in a running actor under ``on_lost="abort"``, as Dramatiq raises its time limit."""


class Ended(SkipMessage):
    """Tells Dramatiq that this delivery is over and that its outcome is written, or still to come."""


NOT_RETRIED = (ConfigurationError, Conflict, StoreUnavailable)
"""Added to the ``throws`` of every singleton actor: such a message goes to the dead letters at once."""
