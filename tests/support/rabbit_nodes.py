"""Dramatiq workers on RabbitMQ; leases, results and groups are kept by a Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis
from dramatiq.common import dq_name, xq_name

from tests.integration.dramatiq_actors import Actors, make_broker
from tests.support.dramatiq_nodes import Cluster
from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from tests.support.rabbit import RabbitServer

QUEUE = "default"


class RabbitCluster(Cluster):
    """Dramatiq on a running RabbitMQ, which it leaves empty.

    Args:
        folder: where logs and the body log go.
        rabbit: the broker.
        prefetch: how many messages each worker process fetches ahead; 0: Dramatiq's choice.
        env: more variables for the workers.
    """

    def __init__(
        self, folder: Path, rabbit: RabbitServer, *, prefetch: int = 0, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, env={"dramatiq_queue_prefetch": str(prefetch), **(env or {})})
        self.rabbit = rabbit

    def __enter__(self) -> Self:
        """Start the store and connect a publisher."""
        try:
            self.store = self._stack.enter_context(ValkeyServer())
            self.server = self.rabbit  # type: ignore[assignment] - its URL is all that workers need
            self.client = self._stack.enter_context(redis.Redis.from_url(self.store.url))
            broker = make_broker(self.rabbit.url, self.store.url)
            self.actors = Actors(broker)
            self._stack.callback(broker.close)
            self._stack.callback(self._empty)
        except BaseException:
            self._stack.close()
            raise
        return self

    def dead(self) -> int:
        """Return how many messages are in the dead-letter queue."""
        broker = self.actors.broker
        broker.declare_queue(QUEUE, ensure=True)
        dead: int = broker.get_queue_message_counts(QUEUE)[2]
        return dead

    def idle(self) -> bool:
        """Whether no message waits; those that a worker has fetched are not counted."""
        broker = self.actors.broker
        broker.declare_queue(QUEUE, ensure=True)
        return not any(broker.get_queue_message_counts(QUEUE)[:2])

    def _empty(self) -> None:
        for name in (QUEUE, dq_name(QUEUE), xq_name(QUEUE)):
            self.actors.broker.channel.queue_delete(name)
