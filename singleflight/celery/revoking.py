"""A revoked run waits no longer: its slot is free when the revocation comes, not when its moment does.

Celery only notes what is revoked, and looks when a message's countdown is over. Until then a new call would
be taken for a duplicate of a run that will never start.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from celery.utils.functional import maybe_list
from celery.worker import state
from celery.worker.control import Panel

from singleflight.celery.request import SingletonRequest
from singleflight.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = ("revoke", "revoke_by_stamped_headers")


def watch_revocations() -> None:
    """Look, after each command that revokes, whether one of this worker's waiting runs is meant."""
    for name in COMMANDS:
        command = Panel.data[name]
        if not hasattr(command, "__wrapped__"):
            Panel.data[name] = _watched(command)


def _watched(command: Any) -> Any:
    @functools.wraps(command)
    def revoke(panel: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return command(panel, *args, **kwargs)
        finally:
            _leave(panel.consumer)

    return revoke


def _leave(consumer: Any) -> None:
    """Free the slots of what is revoked; whatever goes wrong here, the command has done its work."""
    try:
        for request in _waiting(consumer):
            if _is_revoked(request):
                request.singleflight_leave()
    except Exception:  # noqa: BLE001 - what a command does must not depend on ours
        logger.exception("the slots of revoked runs are left to lapse, after an unexpected error")


def _waiting(consumer: Any) -> Iterator[SingletonRequest]:
    """Yield the runs that this worker has received and not started."""
    for entry in list(getattr(getattr(consumer.timer, "schedule", None), "queue", ())):
        given = getattr(entry.entry, "args", None) or (None,)
        if isinstance(given[0], SingletonRequest):
            yield given[0]
    for request in list(state.reserved_requests):
        if isinstance(request, SingletonRequest) and request not in state.active_requests:
            yield request


def _is_revoked(request: Any) -> bool:
    if request.id in state.revoked:
        return True
    stamps = {name: maybe_list(value) or () for name, value in (request.stamps or {}).items()}
    return any(
        set(map(str, values)) & set(map(str, state.revoked_stamps.get(name, ())))
        for name, values in stamps.items()
    )
