"""The error under which Celery stores a skipped run."""

from celery.exceptions import Ignore, TaskRevokedError

from singleflight.errors import Skipped as _Skipped


class Skipped(_Skipped, TaskRevokedError):
    """Raised by ``.get()`` for a run that was skipped as a duplicate; its state is REVOKED."""


class Ended(Ignore):
    """Tells Celery that this delivery is over and that its outcome is written, or still to come."""

    def __init__(self, how: str, why: str = "") -> None:
        """``how`` is one of `SKIPPED`, `DEFERRED`, `DROPPED`; the worker's main process tells it."""
        super().__init__(how, why)
        self.how = how
        self.why = why


SKIPPED = "skipped"
DEFERRED = "deferred"
DROPPED = "dropped"
