"""Publishers of a ``waiting_or_running`` task, while workers and the store restart at random."""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from singleflight.policy import SHORT_QUEUE
from tests.integration import publish_app
from tests.support.bodylog import overlaps
from tests.support.rabbit import RabbitServer
from tests.support.rig import Rig
from tests.support.servers import ValkeyServer
from tests.support.sweep import SWEEP
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from celery.result import AsyncResult

CONF = {
    "redis": {"broker_transport_options": {"visibility_timeout": 5, **SWEEP}},
    "rabbitmq": {"broker_transport_options": {}},
}
DRAIN = 240
"""Seconds that only bound a failure: hundreds of redelivered runs, which all must run, one at a time."""

SLOT = SHORT_QUEUE + 10
"""Seconds after which no message that was lost is taken for a waiting one."""

asked_for = pytest.mark.skipif(
    not os.environ.get("SINGLEFLIGHT_CHAOS"),
    reason="takes a minute or two; type: SINGLEFLIGHT_CHAOS=1 ./dev test -k restarts",
)


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("publishers", "each", "restarts"), [(5, 20, 4), pytest.param(20, 50, 8, marks=asked_for)]
)
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_nothing_overlaps_and_nothing_is_stuck_after_restarts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broker: str, publishers: int, each: int, restarts: int
) -> None:
    """Killed workers, a store that comes and goes, a backlog sent unseen: afterwards the key is free."""
    with ExitStack() as stack:
        # The store keeps what it has promised over its restarts; one that forgets may grant a lease twice.
        store = stack.enter_context(ValkeyServer("--appendonly", "yes", "--appendfsync", "no"))
        url = stack.enter_context(RabbitServer()).url if broker == "rabbitmq" else ""
        rig = stack.enter_context(Rig(tmp_path, conf=CONF[broker], store_server=store, broker_url=url))
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

        threads = [threading.Thread(target=publish, daemon=True) for _ in range(publishers)]
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
        messages = [result for result in sent if not result.duplicate]
        began = time.monotonic()
        until(
            lambda: not pending(messages) or (broker == "redis" and rig.broker_is_empty()),
            DRAIN,
            "the end of every message",
            every=0.5,
        )
        drained, lost = time.monotonic() - began, pending(messages)
        fresh = until(
            lambda: (result := once.apply_async(("chaos",))).id not in {one.id for one in lost} and result,
            SLOT if lost else 1,
            "a publish that is no duplicate of a message that was lost",
            every=1,
        )
        value = fresh.get(timeout=60)
        facts = (
            f"{broker}: {len(sent)} publishes, {done} restarts: {len(messages)} messages, "
            f"{len(rig.runs('chaos'))} runs, {fates(rig)}; all over {drained:.0f} s later, "
            f"{len(lost)} lost by the broker"
        )
        with capsys.disabled():
            sys.stdout.write(f"\n{facts}\n")

        assert not errors
        assert len(sent) == publishers * each
        assert (fresh.duplicate, value) == (False, fresh.id), facts
        assert not overlaps(rig.runs("chaos")), facts
        assert not rig.endless_keys()
        # Celery's Redis transport takes a message and notes that it has it in two steps; a worker that is
        # killed between them takes that one along.
        kills = (done + 1) // 2
        assert len(lost) <= (kills if broker == "redis" else 0), facts


def pending(results: list[AsyncResult]) -> list[AsyncResult]:
    """Return those of which nothing has been heard."""
    return [result for result in results if result.state == "PENDING"]


def fates(rig: Rig) -> str:
    """Say what became of deliveries, by the workers' logs."""
    text = "".join(worker.logs() for worker in rig.workers)
    counts = Counter(re.findall(r"once: run \S+ (deferred|skipped|dropped)", text))
    return ", ".join(f"{count} {fate}" for fate, count in sorted(counts.items()))
