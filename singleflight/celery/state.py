"""What a process knows of the delivery that it works on, kept where no message can put anything.

Celery spreads a message's headers, and a part of its body, over ``Task.request``: names, values and even
``properties`` there are the author's. So nothing of ours is a plain value. The worker's main process hands
the pool an `Arrival`, and the pool keeps a `State`; either counts only if it is of that very type, which
nothing can make that JSON, YAML or msgpack carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from singleflight.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery.app.task import Context

    from singleflight.lease import Lease
    from singleflight.stores.base import Release

ATTRIBUTE = "singleflight_state"
"""Where a request keeps its `State`."""

PROPERTY = "singleflight_arrival"
"""The message property under which the pool finds the `Arrival`.

A property, because a retry publishes again what it finds among the headers.
"""


class Arrival(str):
    """One delivery, as the worker's main process has received it.

    To everybody else it is a text, the message's id: handlers of signals that come before the task, to which
    it is still among the properties, log these as JSON.
    """

    __slots__ = ("body", "content_encoding", "content_type", "headers", "token")

    token: str
    content_type: str | None
    """How the message's body is written; a deferred one is written alike."""
    content_encoding: str | None
    body: bytes | None
    """As it came, None of an older form; the pool gets the same bytes anyway, and pickles them once."""
    headers: Mapping[str, Any]
    """As they came."""

    @classmethod
    def of(
        cls,
        message_id: str,
        token: str,
        *,
        content_type: str | None,
        content_encoding: str | None = None,
        body: bytes | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> Arrival:
        """Return what is known of a delivery."""
        arrival = cls(message_id)
        arrival.token, arrival.content_type, arrival.content_encoding = token, content_type, content_encoding
        arrival.body, arrival.headers = body, headers or {}
        return arrival

    @property
    def message_id(self) -> str:
        """The id that the message came with."""
        return str(self)


@dataclass(slots=True, eq=False)
class State:
    """How far a delivery has come in this process."""

    eager: bool
    """The run was called with ``apply``; a message that says so of itself is none."""
    arrival: Arrival | None = None
    """What the main process has said of it."""
    entered: bool = False
    """Its body is being run, or its gate: a direct call from inside sees the same request."""
    lease: Lease | None = None
    """Held until Celery has stored the result and sent what follows."""
    keeps_slot: bool = False
    """Its key has a waiting slot, which the run's own retry must not lose."""
    again: float | None = None
    """In how many seconds the retry comes that this run has published; None: it has published none."""
    leaves: Release | None = None
    """What is to be recorded of a run that ends without having run, once its end is stored."""


eager = Switch("singleflight_eager")
"""What runs was called with ``apply``, and not delivered."""


def known_state(request: Context) -> State | None:
    """Return the state of a request that has been at the gate of a singleton task."""
    state = request.__dict__.get(ATTRIBUTE)
    return state if isinstance(state, State) else None


def state_of(request: Context) -> State:
    """Return the state of a request, whatever its message has put in its place."""
    state = known_state(request)
    if state is None:
        state = request.__dict__[ATTRIBUTE] = State(bool(eager), _take_arrival(request))
    return state


def _take_arrival(request: Context) -> Arrival | None:
    """Take what the main process has put among a request's properties, which are the task's from now on."""
    if not isinstance(request.properties, dict) or PROPERTY not in request.properties:
        return None
    properties = dict(request.properties)  # a pool without processes shares them with the main thread
    arrival = properties.pop(PROPERTY)
    request.properties = properties
    return arrival if isinstance(arrival, Arrival) else None
