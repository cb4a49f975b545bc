"""The worker's main process: a token for each delivery, and the release where the child could not."""

from __future__ import annotations

import os
import signal
from collections import OrderedDict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError

from singleflight.celery.delivery import may_come_back, read
from singleflight.celery.errors import SKIPPED, Ended
from singleflight.celery.state import PROPERTY, Arrival
from singleflight.errors import SingleflightError
from singleflight.lease import Outcome, monotonic
from singleflight.leases.claiming import new_token
from singleflight.leases.lanes import Lanes
from singleflight.log import logger
from singleflight.tasks.message import id_of, mapping

GRACE = 1.0
"""Seconds a lease is shortened to when its child is being killed: billiard lets it live another 0.1 s."""

LEAVE = 60.0
"""Seconds for which the waiting slot of a run that will not start is tried to be freed."""

MOST_LOSSES = 5
"""A run that has taken so many pool processes with it is rejected for good instead of redelivered."""

DEATHS = (WorkerLostError, Terminated, TimeLimitExceeded, SystemExit, KeyboardInterrupt)


if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.worker.request import Request as Behind

    from singleflight.leases.claiming import Request as Asked
    from singleflight.tasks.delivery import Delivery
else:
    Behind = object


class SingletonRequest(Behind):
    """Mixed in before a task's request class.

    Only hooks that Celery's generated request class leaves alone are overridden: it replaces
    ``on_success`` and ``execute_using_pool``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Mint the delivery's token; pool process and main process share it through the properties."""
        super().__init__(*args, **kwargs)
        self._singleflight_arrival = Arrival.of(
            id_of(self.id),
            new_token(),
            content_type=self._content_type,
            content_encoding=self.content_encoding,
            body=_bytes(self.body) if self._content_type else None,
            headers=self.message.headers if self._content_type else {},
        )
        properties = mapping(self._request_dict.get("properties"))
        self._request_dict["properties"] = {**properties, PROPERTY: self._singleflight_arrival}
        self._singleflight_requeued = False
        self._singleflight_retried = False

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Note whether the message comes back; a run that kills its process each time does not."""
        if requeue and _losses.get(self._singleflight_arrival.message_id, 0) >= MOST_LOSSES:
            requeue = False
        self._singleflight_requeued = requeue
        super().reject(requeue=requeue)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Give back the lease of a child that died."""
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        if isinstance(error, WorkerLostError):
            _note_loss(self.task.name, self._singleflight_arrival.message_id)
        result = super().on_failure(exc_info, *args, **kwargs)
        if (
            isinstance(error, WorkerLostError)
            and _losses.get(self._singleflight_arrival.message_id, 0) >= MOST_LOSSES
        ):
            self.task.backend.mark_as_failure(
                self.id, error, request=self._context, store_result=self.store_errors
            )
        with self._singleflight_surviving():
            if isinstance(error, DEATHS):
                timeout = isinstance(error, TimeLimitExceeded)
                self._singleflight_release(grace=GRACE if timeout else 0, timeout=timeout)
            elif isinstance(error, Ended):
                self._singleflight_announce(error)
        return result

    @contextmanager
    def _singleflight_surviving(self) -> Iterator[None]:
        """Surround all that is ours in the main process: what raises here ends the worker."""
        try:
            yield
        except SingleflightError as error:
            logger.warning("%s[%s]: left to its ttl: %s", self.task.name, self.id, error)
        except Exception:  # noqa: BLE001 - a lease that is left to its ttl is a small thing beside a worker
            logger.exception("%s[%s]: left to its ttl, after an unexpected error", self.task.name, self.id)

    def _singleflight_announce(self, ended: Ended) -> None:
        """Tell monitors how a delivery ended that did not run; Flower shows the exception."""
        if ended.how == SKIPPED:
            why = f"Skipped({ended.why!r})"
            self.send_event("task-revoked", terminated=False, signum=None, expired=False, exception=why)
        self.send_event(f"singleflight-{ended.how}", name=self.name, reason=ended.why)

    def _retry_worker_lost(self, *args: Any) -> bool:  # Celery 5.7 and later
        self._singleflight_retried = super()._retry_worker_lost(*args)
        return self._singleflight_retried

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - Celery's signature
        """Shorten the lease of a child that has met its hard time limit and is about to be killed."""
        super().on_timeout(soft, timeout)
        with self._singleflight_surviving():
            if not soft:
                self._singleflight_release(grace=GRACE, timeout=True)

    def _announce_revoked(self, reason: str, terminated: Any, signum: Any, expired: Any) -> None:
        super()._announce_revoked(reason, terminated, signum, expired)
        with self._singleflight_surviving():
            if not terminated:
                self.singleflight_leave()
            elif signum == signal.SIGKILL:
                self._singleflight_release(grace=GRACE)
        # On any other signal the body may take its time to clean up; the lease is its own until it is dead.

    def _singleflight_release(self, *, grace: float, timeout: bool = False) -> None:
        """Release in the keeper's thread: the event loop must not wait for a store."""
        if not self.task.singleflight.enabled or self.worker_pid in (None, os.getpid()):
            return  # never started, or a pool without processes: the body itself gives back
        # A cancelled request (a cold shutdown, a lost broker connection) goes back to the broker.
        back = self._singleflight_requeued or self._singleflight_retried or self._already_cancelled
        outcome = Outcome.CANCELLED if self._already_revoked else Outcome.FAILED
        if back or (outcome is Outcome.FAILED and may_come_back(self.task, timeout=timeout)):
            outcome = Outcome.REQUEUED
        _delivery, request = self._singleflight_asked()
        if request is not None:
            self.task.singleflight.leases.disown(request, outcome, grace=grace)

    def singleflight_leave(self) -> None:
        """Let a run wait no longer that will never start, or it would keep others from waiting."""
        if not self.task.singleflight.enabled:
            return
        delivery, request = self._singleflight_asked()
        runtime, end = self.task.singleflight, monotonic() + LEAVE
        waits = request is not None and (request.wait or request.order)
        keys = {request.key} if request is not None and waits else set()
        if delivery.carried.slot is not None and runtime.is_own(self.task, delivery.carried.slot):
            keys.add(delivery.carried.slot)
        for key in keys:
            _background.put(id(runtime), partial(runtime.leave, delivery.leaving(key), until=end))

    def _singleflight_asked(self) -> tuple[Delivery, Asked | None]:
        """Return this delivery, and what the child has asked the store for, or would have."""
        runtime = self.task.singleflight
        delivery = read(self._request_dict, self.task.name, self._singleflight_arrival)
        policy = runtime.policy(self.task, delivery)
        return delivery, None if policy is None else runtime.request(self.task, policy, delivery)


def _bytes(body: Any) -> bytes | None:
    if isinstance(body, bytes):
        return body  # the very same, see `Arrival.body`
    return body.encode() if isinstance(body, str) else None


_background = Lanes("singleflight-slots")
"""Asks the store for the event loop, which must not wait; a store that hangs does not hold up the exit."""


_losses: OrderedDict[str, int] = OrderedDict()
"""How many pool processes of this worker each run has taken with it; the last thousand such runs."""


def _note_loss(task: str, run_id: str) -> None:
    _losses[run_id] = _losses.pop(run_id, 0) + 1
    if len(_losses) > 1000:  # noqa: PLR2004
        _losses.popitem(last=False)
    logger.warning(
        "%s[%s] lost its pool process, time %d of %d on this worker",
        task, run_id, _losses[run_id], MOST_LOSSES,
    )  # fmt: skip
