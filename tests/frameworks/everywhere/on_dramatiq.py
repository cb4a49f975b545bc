"""Install singleflight on every Dramatiq broker of this process, and perhaps make every actor a singleton."""

from __future__ import annotations

from functools import wraps
from typing import Any

from dramatiq import Actor, Broker

from singleflight import Singleton
from singleflight.dramatiq import install


def put(mode: str, store: str | None) -> None:
    """Patch Dramatiq; ``mode`` is the run's."""
    original = Broker.__init__

    @wraps(original)
    def init(self: Broker, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        install(self, store, enabled="observe" if mode == "observe" else True)

    Broker.__init__ = init  # type: ignore[method-assign]
    if mode in ("observe", "singleton"):
        declare = Broker.declare_actor

        @wraps(declare)
        def declare_actor(self: Broker, actor: Actor[Any, Any]) -> None:
            actor.options.setdefault("singleton", Singleton(by="*", on_conflict="defer"))
            declare(self, actor)

        Broker.declare_actor = declare_actor  # type: ignore[method-assign]
