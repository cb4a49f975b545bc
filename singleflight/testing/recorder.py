"""Leases in memory for one test, with all that happens to them written down."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from singleflight.errors import ConfigurationError
from singleflight.events import Kind
from singleflight.lease import Busy, Holder, Outcome
from singleflight.stores.base import Claim, Release
from singleflight.stores.memory import MemoryStore
from singleflight.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery, Task

    from singleflight.celery.runtime import Runtime
    from singleflight.events import Event, Listener


class FlightRecorder:
    """A store in memory, a clock to turn by hand, and every `Event`; no server and no waiting.

    It is also a listener: where an app or a broker is made for the test, give it ``store`` and the recorder
    itself as one of its ``listeners``.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        """What the store goes by: ``clock.advance(60)`` ends windows and leases of a minute."""
        self.store = MemoryStore(clock=self.clock)
        self.events: list[Event] = []
        """All that has happened, in order."""
        self._attached = ExitStack()

    def __call__(self, event: Event) -> None:
        """Write one event down."""
        self.events.append(event)

    def of(self, *kinds: Kind | str) -> list[Event]:
        """Return the events of these kinds."""
        return [event for event in self.events if event.kind in kinds]

    @property
    def skipped(self) -> list[Event]:
        """The runs that were skipped, and why."""
        return self.of(Kind.SKIPPED, Kind.GAVE_UP)

    def attach(self, app: Celery, *listeners: Listener) -> None:
        """Let a Celery app keep its leases here until the test ends, in eager runs too.

        Prefix, defaults and listeners stay those that `singleflight.celery.install` was given; ``listeners``
        are more of them.

        Raises:
            ConfigurationError: if singleflight is not installed in the app.
        """
        holder: Any = app  # `install` leaves an attribute that Celery's class does not know
        before: Runtime | None = getattr(app, "singleflight", None)
        if before is None:
            raise ConfigurationError(
                f"the app {app.main!r} has no leases: call singleflight.celery.install(app) where it is made"
            )
        heard_by = (*before.setting("listeners", ()), self, *listeners)
        holder.singleflight = before.changed(self.store, enabled=True, eager=True, listeners=heard_by)
        self._attached.callback(setattr, app, "singleflight", before)

    def detach(self) -> None:
        """Give each app its own store back."""
        self._attached.close()

    @contextmanager
    def running(self, task: Task, /, *args: Any, **kwargs: Any) -> Iterator[str]:
        """Let a run of this call be under way elsewhere, so that the next one is a duplicate.

        Yields:
            The other run's id.

        Raises:
            ConfigurationError: if the call takes no lease.
            AssertionError: if such a run is under way already, or its window is not over.
        """
        from singleflight.tasks.delivery import Delivery  # noqa: PLC0415 - writers of stores have no Celery

        run_id, token = f"elsewhere-{uuid4()}", uuid4().hex
        delivery = Delivery(run_id, 0, token, args, kwargs)
        runtime: Runtime = task.app.singleflight
        behind: Any = task.app.tasks[task.name]  # `task` may be Celery's proxy of it
        policy = runtime.policy(behind, delivery)
        asked = None if policy is None else runtime.request(behind, policy, delivery)
        if asked is None:
            raise ConfigurationError(
                f"{behind.name}{args} takes no lease: it is no singleton, or no such call"
            )
        ttl_ms, window_ms = round(asked.ttl * 1000), round(asked.window * 1000)
        holder = Holder(behind.name, host="elsewhere", pid=0).encode()
        answer = self.store.claim(
            Claim(asked.key, run_id, 0, token, ttl_ms=ttl_ms, window_ms=window_ms, holder=holder)
        )
        if isinstance(answer, Busy):
            raise AssertionError(f"{behind.name} cannot be running elsewhere: {answer}")  # noqa: TRY004
        try:
            yield run_id
        finally:
            self.store.release(Release(asked.key, run_id, 0, token, Outcome.FINISHED))
