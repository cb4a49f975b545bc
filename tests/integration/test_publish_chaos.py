"""Twenty publishers of a ``waiting_or_running`` task, while workers and the store restart at random."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration import publish_app
from tests.support.bodylog import overlaps
from tests.support.rig import Rig
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHERS, EACH = 20, 50
CONF = {
    "broker_transport_options": {
        "visibility_timeout": 5,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
}


@pytest.mark.skipif(
    not os.environ.get("SINGLEFLIGHT_CHAOS"),
    reason="slow machines need longer than its minute; type: SINGLEFLIGHT_CHAOS=1 ./dev test -k restarts",
)
def test_nothing_overlaps_and_nothing_is_stuck_after_restarts(tmp_path: Path) -> None:
    """A thousand publishes, killed workers, a store that comes and goes: then the key is free."""
    # The store keeps what it has promised over its restarts; one that forgets may grant a lease twice.
    lasting = ValkeyServer("--appendonly", "yes", "--appendfsync", "always")
    with lasting as store, Rig(tmp_path, conf=CONF, store_server=store) as rig:
        rig.start(2, concurrency=2, args=["-I", publish_app.__name__])
        once, sent, errors = rig.app.tasks["once"], [], []

        def publish() -> None:
            try:
                for _ in range(EACH):
                    sent.append(once.apply_async(("chaos",), {"seconds": 0.1}))
                    time.sleep(random.uniform(0.05, 0.4))
            except BaseException as error:
                errors.append(error)
                raise

        publishers = [threading.Thread(target=publish) for _ in range(PUBLISHERS)]
        for publisher in publishers:
            publisher.start()
        restarts = 0
        while any(publisher.is_alive() for publisher in publishers):
            if restarts % 2:
                store.restart()
            else:
                worker = random.choice(rig.workers)
                worker.child.kill()
                worker.restart()
            restarts += 1
            time.sleep(random.uniform(0.2, 1.0))
        for publisher in publishers:
            publisher.join(30)
        until(lambda: rig.queued() == 0 and rig.unacknowledged() == 0, 60, "an empty queue", every=0.2)
        fresh = once.apply_async(("chaos",))
        messages = sum(not result.duplicate for result in sent)
        facts = (
            f"{len(sent)} publishes, {messages} messages, {len(rig.runs('chaos'))} runs, {restarts} restarts"
        )

        assert not errors
        assert len(sent) == PUBLISHERS * EACH
        assert restarts >= 4, facts
        assert not fresh.duplicate, facts
        assert fresh.get(timeout=20) == fresh.id
        assert not overlaps(rig.runs("chaos")), facts
        (tmp_path / "facts").write_text(facts)
