"""Publishers of a ``waiting_or_running`` task, while workers and the store restart at random."""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integration import publish_app
from tests.support.bodylog import overlaps
from tests.support.rig import Rig
from tests.support.servers import ValkeyServer
from tests.support.sweep import SWEEP
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

CONF = {"broker_transport_options": {"visibility_timeout": 5, **SWEEP}}
DRAIN = 240
"""Seconds that only bound a failure: what was published while the store was away comes to a thousand
deliveries and more, of which a busy machine handles thirty a second."""

asked_for = pytest.mark.skipif(
    not os.environ.get("SINGLEFLIGHT_CHAOS"),
    reason="takes a minute or two; type: SINGLEFLIGHT_CHAOS=1 ./dev test -k restarts",
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("publishers", "each", "restarts"), [(5, 20, 4), pytest.param(20, 50, 8, marks=asked_for)]
)
def test_nothing_overlaps_and_nothing_is_stuck_after_restarts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], publishers: int, each: int, restarts: int
) -> None:
    """Killed workers, a store that comes and goes, a backlog sent unseen: afterwards the key is free."""
    # The store keeps what it has promised over its restarts; one that forgets may grant a lease twice.
    lasting = ValkeyServer("--appendonly", "yes", "--appendfsync", "no")
    with lasting as store, Rig(tmp_path, conf=CONF, store_server=store) as rig:
        rig.start(2, concurrency=2, args=["-I", publish_app.__name__])
        once, sent, errors = rig.app.tasks["once"], [], []

        def publish() -> None:
            try:
                for _ in range(each):
                    sent.append(once.apply_async(("chaos",), {"seconds": 0.1}))
                    time.sleep(random.uniform(0.05, 0.4))
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=publish) for _ in range(publishers)]
        for thread in threads:
            thread.start()
        done = 0
        while done < restarts or any(thread.is_alive() for thread in threads):
            if done % 2:
                store.restart()
            else:
                worker = random.choice(rig.workers)
                worker.child.kill()
                worker.restart()
            done += 1
            time.sleep(random.uniform(0.2, 1.0))
        for thread in threads:
            thread.join(60)
        backlog, began = rig.queued(), time.monotonic()
        until(lambda: rig.queued() == 0 and rig.unacknowledged() == 0, DRAIN, "an empty queue", every=0.2)
        drained = time.monotonic() - began
        fresh = once.apply_async(("chaos",))
        value = fresh.get(timeout=60)
        messages = sum(not result.duplicate for result in sent)
        facts = (
            f"{len(sent)} publishes, {done} restarts: {messages} messages, {len(rig.runs('chaos'))} runs, "
            f"{fates(rig)}; {backlog} in the queue at the end, which was empty {drained:.0f} s later"
        )
        with capsys.disabled():
            sys.stdout.write(f"\n{facts}\n")

        assert not errors
        assert len(sent) == publishers * each
        assert (fresh.duplicate, value) == (False, fresh.id), facts
        assert not overlaps(rig.runs("chaos")), facts
        assert not rig.endless_keys()


def fates(rig: Rig) -> str:
    """Say what became of deliveries, by the workers' logs."""
    text = "".join(worker.logs() for worker in rig.workers)
    counts = Counter(re.findall(r"once: run \S+ (deferred|skipped|dropped)", text))
    return ", ".join(f"{count} {fate}" for fate, count in sorted(counts.items()))
