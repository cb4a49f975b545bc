"""What a singleton task's class gains: the gate around its body, and ``singleton=`` for a single call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import states
from celery.result import EagerResult
from celery.utils import uuid

from singleflight.celery import gate, marks, publish
from singleflight.celery.delivery import HEADER, Header, option_of
from singleflight.celery.errors import SKIPPED, Ended, Skipped
from singleflight.celery.results import marked
from singleflight.celery.state import eager, state_of
from singleflight.errors import ConfigurationError
from singleflight.policy import Singleton
from singleflight.tasks.message import mapping

if TYPE_CHECKING:
    from celery import Task as Behind

    from singleflight.celery.runtime import Runtime
else:
    Behind = object

TASK_ID = 4
"""The place of the task id among the arguments of ``apply``."""


class SingletonTask(Behind):
    """Mixed in before a task's own class by `singleflight.celery.upgrade`."""

    singleflight_own: Any
    """The task's own class, which comes after this one."""
    singleflight_own_call: bool
    """True if the task's class has a ``__call__`` of its own, which runs inside the lease."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Stop here: a base class of the user's asks about the user's classes, and has seen this one's."""

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Bind the task's own class: what settings and annotations put there must not hide what is here."""
        return cls.singleflight_own.bind(app)

    @property
    def singleflight(self) -> Runtime:
        """What `install` left with the task's app.

        Raises:
            ConfigurationError: if the app is a copy that it did not come along with.
        """
        runtime: Runtime | None = getattr(self.app, "singleflight", None)
        if runtime is None:
            raise ConfigurationError(
                f"{self.name} takes no lease here: the copy of the app {self.app.main!r} in this process has "
                "none. Call singleflight.celery.install(app) in it as well, in the signal worker_process_init"
            )
        return runtime

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body under a lease if a worker delivers it; a direct call just runs."""
        request = self.request
        if request.called_directly or (ours := state_of(request)).entered:
            return super().__call__(*args, **kwargs)
        if self.request_stack.top is not request and self.singleflight.enabled:
            raise ConfigurationError(
                f"{self.name} takes no lease in this worker's pool, which calls it in another thread than "
                "the one that will know its end; use one of Celery's own pools, or leave singleton= out"
            )
        own: Any = super().__call__ if self.singleflight_own_call else self.run

        def body() -> Any:
            return own(*args, **kwargs)

        ours.entered = True
        if not self.singleflight_own_call:
            # Celery's own mark that this request has its body: a direct call from inside gets a copy of it.
            request.__dict__["_protected"] = 1
        if not self.singleflight.enabled or (ours.eager and not self.singleflight.eager):
            self.singleflight_before()
            return body()
        return gate.run(self.singleflight, self, body, self.singleflight_before)

    # Celery stores STARTED and calls before_start ahead of __call__; a copy that never runs would then
    # overwrite a result. So Celery sees neither, and both happen once the lease is granted.
    @property
    def track_started(self) -> bool:
        """False for Celery's tracer; the task's own setting is honoured after the grant."""
        return False

    @track_started.setter
    def track_started(self, value: bool | None) -> None:
        self.__dict__["track_started"] = value

    @property
    def singleflight_tracks_start(self) -> bool:
        """Whether STARTED is to be stored: the task's own word, else the app's setting."""
        wanted = self.__dict__.get("track_started", getattr(super(), "track_started", None))
        return bool(self.app.conf.task_track_started if wanted is None else wanted)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Do nothing yet: the task's own ``before_start`` is called after the grant."""

    def singleflight_before(self) -> None:
        """Do what Celery does between a grant and the body."""
        request = self.request
        ignored = state_of(request).eager or request.ignore_result or self.ignore_result
        if self.singleflight_tracks_start and not ignored:
            gate.mark_started(self)
        super().before_start(request.id, request.args, request.kwargs)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Publish; ``singleton=False`` or ``singleton=Singleton(...)`` overrides options for this run.

        A base class's own ``apply_async`` is called by Celery's convention: what it was given by keyword.

        Returns:
            What the task's own ``apply_async`` returns; a result also tells whether it is a duplicate's, see
            `singleflight.celery.results.SingletonResult`.

        Raises:
            ConfigurationError: for options that cannot be, or cannot travel in a message.
            Conflict: under ``on_conflict="raise"``, if a ``waiting_...`` task finds another run in the way.
            StoreUnavailable: under ``on_store_error="raise"``, if a ``waiting_...`` task gets no answer.
        """
        named = {
            "task_id": task_id,
            "producer": producer,
            "link": link,
            "link_error": link_error,
            "shadow": shadow,
        }
        options |= {name: value for name, value in named.items() if value is not None}
        publish.carry(self, options)
        marks.mark(self.app, options)
        publish.note_retry(self, options)
        return publish.publish(self, args, kwargs, options, super().apply_async)

    def apply(self, *args: Any, **options: Any) -> Any:
        """Run eagerly; a run that is skipped ends as it would in a worker: REVOKED with `Skipped`."""
        publish.carry(self, options)
        marks.mark(self.app, options)
        header = mapping(options.get("headers")).get(HEADER)
        if isinstance(header, Header):
            if len(args) <= TASK_ID:
                options["task_id"] = options.get("task_id") or uuid()
            header.bind(args[TASK_ID] if len(args) > TASK_ID else options["task_id"], self.name)
        with eager.on():
            result = super().apply(*args, **options)
        if isinstance(result, EagerResult) and isinstance(result._result, Ended):  # noqa: SLF001 - no public way
            how = result._result.how  # noqa: SLF001
            if how == SKIPPED:
                error = Skipped(f"{self.name} was a duplicate")
                result = EagerResult(result.id, error, states.REVOKED, name=self.name)
        return marked(result)


def declared(task: Any) -> Singleton | None:
    """Return the options a task was declared with; None if it is no singleton."""
    return Singleton.from_option(option_of(task))
