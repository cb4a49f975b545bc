"""What publishing a singleton task returns: a result of the task's own kind that tells a duplicate's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.result import AsyncResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.result import AsyncResult as Behind

    from singleflight.lease import Busy
    from singleflight.tasks.publishing import Place
else:
    Behind = object

KIND = "_singleflight_kind"
"""Where a class of results keeps its `SingletonResult`: a table of classes would keep their apps alive."""


class SingletonResult(Behind):
    """The result of the run that was published or, for a duplicate, of the one that waits or runs.

    Mixed in before the class that the task itself makes results of, so that nothing of that is missing.
    """

    busy: Busy | None = None
    """Who is in the way, if nothing was published."""
    singleflight_place: Place | None = None
    """The run's place in the queue for its key, in the process that has looked for it."""

    def revoke(self, *args: Any, **kwargs: Any) -> Any:
        """Do as Celery does; a run that waits then waits no longer, so the next call is no duplicate."""
        super().revoke(*args, **kwargs)
        if self.singleflight_place is not None:
            self.singleflight_place.leave(self.id)

    @property
    def duplicate(self) -> bool:
        """True if nothing was published, and this is the result of another run."""
        return self.busy is not None

    def __reduce__(self) -> Any:
        """Be pickled as the result that this is made of, whose class others can import."""
        made, args, *_ = super().__reduce__()
        return _unpickled, (type(self).__mro__[2] if made is type(self) else made, args, self.busy)


def marked(result: Any, busy: Busy | None = None, place: Place | None = None) -> Any:
    """Let a result say whether it is a duplicate's; what is no result of a task comes back as it is."""
    if not isinstance(result, AsyncResult) or isinstance(result, SingletonResult):
        return result
    own = type(result)
    kind = own.__dict__.get(KIND)
    if kind is None:
        kind = type(f"Singleton{own.__name__}", (SingletonResult, own), {"__module__": own.__module__})
        setattr(own, KIND, kind)
    result.__class__ = kind
    if busy is not None:
        result.busy = busy
    if place is not None:
        result.singleflight_place = place
    return result


def _unpickled(made: Callable[..., Any], args: Any, busy: Busy | None) -> Any:
    return marked(made(*args), busy)
