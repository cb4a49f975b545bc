"""One arrival of one run's message at one worker, and the option ``singleton=`` of a single message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singleflight.dramatiq import occurrences
from singleflight.identity import run_of
from singleflight.leases.claiming import new_token
from singleflight.policy import Singleton
from singleflight.stores.bounds import MAX_ATTEMPT
from singleflight.tasks.delivery import Delivery
from singleflight.tasks.message import Carried, counted, id_of, mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dramatiq import Actor, Message
    from dramatiq.broker import MessageProxy

OPTION = "singleflight"
"""The message option with all that a run carries of ours; standard JSON."""


def read(message: MessageProxy, actor: Actor[Any, Any]) -> Delivery:
    """Read a message as a worker got it, decoded, and mint the delivery's token.

    All of it is its sender's word; what has no fitting type counts as not there.
    """
    carried, own = carried_by(message), id_of(message.message_id)
    occurrence = occurrences.of_message(message, actor.options.get("occurrence"))
    return Delivery(
        run_id=run_of(own, carried.mark) if occurrence is None else f"at {occurrence}",
        attempt=retries(message),
        token=new_token(),
        args=sequence(message.args),
        kwargs=dict(mapping(message.kwargs)),
        carried=carried,
        # Only RabbitMQ tells of a redelivery; elsewhere the store knows the run if it has started.
        redelivered=bool(getattr(message, "redelivered", False)),
        headers=own_options(message.options),
    )


def own_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's options without ours, for a ``by`` that asks for headers: Dramatiq's go there."""
    return {name: value for name, value in options.items() if not name.startswith(OPTION)}


def retries(message: MessageProxy | Message[Any]) -> int:
    """Return how often Dramatiq has retried a message."""
    return min(counted(message.options.get("retries")), MAX_ATTEMPT)


def carried_by(message: Message[Any] | MessageProxy) -> Carried:
    """Return what a message carries of ours, for itself."""
    return Carried.read(message.options.get(OPTION), id_of(message.message_id), message.actor_name)


def write(message: Message[Any] | MessageProxy, carried: Carried) -> None:
    """Put into a message's options what its run carries."""
    _write(message.options, message.message_id, message.actor_name, carried)


def carry(message: Message[Any]) -> bool:
    """Turn ``singleton=`` and ``occurrence=`` of a message, and of messages inside, into what can travel.

    Returns:
        True if the message itself had one of them: then it is being sent for the first time.

    Raises:
        ConfigurationError: for options that cannot be, or cannot travel in a message.
    """
    return _carry(message.options, message.message_id, message.actor_name)


def _carry(options: dict[str, Any], message_id: str, actor: str) -> bool:
    own = "singleton" in options or "occurrence" in options
    if "occurrence" in options:
        instant = options.pop("occurrence")
        options[occurrences.OPTION] = None if instant is None else occurrences.normal(instant)
    if "singleton" in options:
        call = Singleton.from_option(options.pop("singleton"))
        _write(options, message_id, actor, Carried(options=False if call is None else call))
    inside = [options.get("pipe_target"), *(options.get("group_completion_callbacks") or ())]
    for message in inside:
        if message is not None:
            _carry(message["options"], message["message_id"], message["actor_name"])
    return own


def _write(options: dict[str, Any], message_id: str, actor: str, carried: Carried) -> None:
    header = carried.write(id_of(message_id), actor)
    if header:
        options[OPTION] = header
    else:
        options.pop(OPTION, None)
