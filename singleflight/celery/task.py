"""What a singleton task's class gains: the gate around its body, and ``singleton=`` for a single call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import states
from celery.result import EagerResult

from singleflight.celery import gate, joining, publish
from singleflight.celery.delivery import HEADER, option_of
from singleflight.celery.errors import SKIPPED, Ended, Skipped
from singleflight.celery.runtime import key_rule
from singleflight.policy import Singleton
from singleflight.tasks.message import Carried

if TYPE_CHECKING:
    from celery import Task as Behind

    from singleflight.celery.runtime import Runtime
else:
    Behind = object

ENTERED = "_singleflight_entered"
"""Set on a request once its body is being run: a direct call from inside sees the same request."""


class SingletonTask(Behind):
    """Mixed in before a task's own class by `singleflight.celery.upgrade`."""

    singleflight_own: Any
    """The task's own class, which comes after this one."""
    singleflight_own_call: bool
    """True if the task's class has a ``__call__`` of its own, which runs inside the lease."""

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Bind the task's own class: what settings and annotations put there must not hide what is here."""
        return cls.singleflight_own.bind(app)

    @property
    def singleflight(self) -> Runtime:
        """What `install` left with the task's app."""
        runtime: Runtime = self.app.singleflight
        return runtime

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body under a lease if a worker delivers it; a direct call just runs."""
        request = self.request
        if request.called_directly or ENTERED in request.__dict__:
            return super().__call__(*args, **kwargs)
        own: Any = super().__call__ if self.singleflight_own_call else self.run

        def body() -> Any:
            return own(*args, **kwargs)

        request.__dict__[ENTERED] = True
        if not self.singleflight_own_call:
            # Celery's own mark that this request has its body: a direct call from inside gets a copy of it.
            request.__dict__["_protected"] = 1
        if not self.singleflight.enabled or (request.is_eager and not self.singleflight.eager):
            self.singleflight_before()
            return body()
        return gate.run(self.singleflight, self, body, self.singleflight_before)

    # Celery stores STARTED and calls before_start ahead of __call__; a copy that never runs would then
    # overwrite a result. So Celery sees neither, and both happen once the lease is granted.
    @property
    def track_started(self) -> bool:
        """False for Celery's tracer; the task's own setting is honoured after the grant."""
        return False

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Do nothing yet: the task's own ``before_start`` is called after the grant."""

    def singleflight_before(self) -> None:
        """Do what Celery does between a grant and the body."""
        request = self.request
        wanted = getattr(super(), "track_started", None)
        if wanted is None:
            wanted = self.app.conf.task_track_started
        if wanted and not request.is_eager and not (request.ignore_result or self.ignore_result):
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

        Returns:
            A `SingletonResult` if a ``waiting_...`` task looks before it publishes, else Celery's own result.

        Raises:
            ConfigurationError: for options that cannot be, or cannot travel in a message.
            Conflict: under ``on_conflict="raise"``, if a ``waiting_...`` task finds another run in the way.
            StoreUnavailable: under ``on_store_error="raise"``, if a ``waiting_...`` task gets no answer.
        """
        _carry(self, options)
        publish.note_retry(self, task_id, options)
        plain = super().apply_async

        def send(task_id: str | None) -> Any:
            return plain(args, kwargs, task_id, producer, link, link_error, shadow, **options)

        if link or link_error:
            return send(task_id)  # nobody can add callbacks to a message that has been sent
        return publish.publish(self, args, kwargs, task_id, options, send)

    def apply(self, *args: Any, **options: Any) -> Any:
        """Run eagerly; a run that is skipped ends as it would in a worker: REVOKED with `Skipped`."""
        _carry(self, options)
        result = super().apply(*args, **options)
        if isinstance(result, EagerResult) and isinstance(result._result, Ended):  # noqa: SLF001 - no public way
            how = result._result.how  # noqa: SLF001
            if how == SKIPPED:
                error = Skipped(f"{self.name} was a duplicate")
                return EagerResult(result.id, error, states.REVOKED, name=self.name)
        return result


def _carry(task: SingletonTask, options: dict[str, Any]) -> None:
    """Turn the option ``singleton=`` of a single call into a header of its message.

    Raises:
        ConfigurationError: for options that the declaration, or the start of a worker, would refuse.
    """
    if "singleton" not in options:
        return
    call = Singleton.from_option(options.pop("singleton"))
    carried = Carried(options=False if call is None else call)
    options["headers"] = {**(options.get("headers") or {}), HEADER: carried.write()}
    policy = task.singleflight.policy_of(task, carried)
    if policy is not None:
        joining.check(task, policy)
        key_rule(task.singleflight.prefix, task, policy)
        if not task.app.conf.task_always_eager:
            task.singleflight.check_results(task, policy)


def declared(task: Any) -> Singleton | None:
    """Return the options a task was declared with; None if it is no singleton."""
    return Singleton.from_option(option_of(task))
