"""The demo's users, a process of its own: ``python -m demo.users SECONDS``."""

from __future__ import annotations

import sys
import time

from demo.app import app, import_file, recalculate
from demo.scenario import RECALCULATE, acts

READY = "users: ready."


def main(seconds: float) -> None:
    """Wait for a line on the standard input, then press the buttons in time."""
    with app.producer_pool.acquire(block=True) as producer:
        producer.connection.ensure_connection(max_retries=3)
    print(READY, flush=True)
    if not sys.stdin.readline():
        return
    start = time.monotonic()
    for act in acts(seconds):
        time.sleep(max(0.0, start + act.at - time.monotonic()))
        if act.task == RECALCULATE.task:
            recalculate.delay(account_id=act.argument)
        else:
            import_file.delay(name=act.argument)


if __name__ == "__main__":
    main(float(sys.argv[1]))
