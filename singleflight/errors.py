"""The error tree; every argument is text, because result backends rebuild errors from their args.

SingleflightError
 ├── ConfigurationError   an option, URL or server set-up that cannot work
 ├── Conflict             another run holds the key, and ``on_conflict="raise"``
 ├── Skipped              the outcome of a duplicate that was skipped
 ├── LeaseLost            this delivery no longer holds its lease
 └── StoreUnavailable     the store did not answer, or not in time
"""


class SingleflightError(Exception):
    """Root of every error that singleflight raises."""


class ConfigurationError(SingleflightError, ValueError):
    """Raised when an option, a URL or a server's set-up can never work.

    It is permanent: trying again does not help, so no ``on_store_error`` policy hides it.
    """


class Conflict(SingleflightError):
    """Raised when another run holds the key and the task said ``on_conflict="raise"``."""


class Skipped(SingleflightError):
    """Stored as the outcome of a run that was skipped as a duplicate."""


class LeaseLost(SingleflightError):
    """Raised when a delivery asks for a lease that it no longer holds."""


class StoreUnavailable(SingleflightError):
    """Raised when the store gives no answer in time; says nothing about who holds a key."""
