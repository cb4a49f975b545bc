"""How long a lease lies idle between two `singleflight run` that wait for it.

    python benchmarks/handoff.py redis://127.0.0.1:6379/0
    python benchmarks/handoff.py --waiters 20 sqlite:////tmp/leases.db

Each waiter's command says when it began and when it ended; the gaps between them are printed. A gap holds all
there is: noticing the end, giving back, the next one's question, starting its command.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from itertools import pairwise


def main() -> None:
    """Start the waiters, and print the gaps between their commands in milliseconds."""
    parser = argparse.ArgumentParser(description="Measure the hand-off between waiting commands.")
    parser.add_argument("url", help="the store's URL")
    parser.add_argument("--waiters", type=int, default=10, help="how many wait, built in 10")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each command takes, built in 1")
    asked = parser.parse_args()
    place, _, query = asked.url.partition("?")
    target = f"{place}/handoff?{query}" if query else f"{place}/handoff"
    command = ["sh", "-c", f"date +%s%N; sleep {asked.seconds}; date +%s%N"]
    waiters = [
        subprocess.Popen(  # noqa: S603 - fixed words and the caller's own URL
            [sys.executable, "-m", "singleflight.cli", "run", target, *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(asked.waiters)
    ]
    runs = sorted([int(moment) for moment in waiter.communicate()[0].split()] for waiter in waiters)
    gaps = sorted((later[0] - earlier[1]) / 1e6 for earlier, later in pairwise(runs))
    print(
        f"{len(gaps)} hand-offs: p50 {statistics.median(gaps):.0f} ms, "
        f"longest {gaps[-1]:.0f} ms, shortest {gaps[0]:.0f} ms"
    )


if __name__ == "__main__":
    main()
