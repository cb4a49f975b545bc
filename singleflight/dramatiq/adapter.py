"""What admission asks of Dramatiq, for a message that a worker has got."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from singleflight.dramatiq import joining, line
from singleflight.dramatiq.abort import Abort
from singleflight.tasks.adapter import Adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from dramatiq import Broker
    from dramatiq.broker import MessageProxy

    from singleflight.tasks.adapter import Nothing, Result
    from singleflight.tasks.message import Carried


class DramatiqAdapter(Adapter):
    """One message at one worker; that others could read its result is not taken for granted."""

    def __init__(self, broker: Broker, message: MessageProxy) -> None:
        self._broker, self._message = broker, message

    @property
    def owner(self) -> Callable[[], object]:
        """See `Adapter.owner`."""
        return weakref.ref(self._message)

    def message(self, carried: Carried) -> bytes:
        """See `Adapter.message`."""
        return line.message_of(self._message, carried)

    def result_of(self, run_id: str) -> Result | Nothing | None:
        """See `Adapter.result_of`."""
        return joining.result_of(self._broker, self._message, run_id)

    def abort(self) -> Abort:
        """See `Adapter.abort`."""
        return Abort()
