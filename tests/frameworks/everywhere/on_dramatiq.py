"""Install singleflight on every Dramatiq broker of this process, and perhaps make every actor a singleton."""

from __future__ import annotations

from functools import wraps
from typing import Any

from dramatiq import Actor, Broker

from singleflight import Singleton
from singleflight.dramatiq import Singleflight, install


def put(mode: str, store: str | None) -> None:
    """Patch Dramatiq; ``mode`` is the run's."""
    emit = Broker.emit_before

    @wraps(emit)
    def emit_before(self: Broker, signal: str, *args: Any, **kwargs: Any) -> None:
        # At a broker's first signal: as its users do, once it is there, and not on one that does nothing.
        if not any(isinstance(each, Singleflight) for each in self.middleware):
            install(self, store, enabled="observe" if mode == "observe" else True)
        emit(self, signal, *args, **kwargs)

    Broker.emit_before = emit_before  # type: ignore[method-assign]
    if mode in ("observe", "singleton"):
        declare = Broker.declare_actor

        @wraps(declare)
        def declare_actor(self: Broker, actor: Actor[Any, Any]) -> None:
            actor.options.setdefault("singleton", Singleton(by="*", on_conflict="defer"))
            declare(self, actor)

        Broker.declare_actor = declare_actor  # type: ignore[method-assign]
