"""One process of plain clients: `python -m tests.torture.client` with its `Orders` as JSON.

Its threads take leases at random, as whoever tries once, waits, comes again with a run that has ended, or
keeps a window; they work under them and give them back, or do not.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from singleflight import Conflict, Lease, Outcome, SingleflightError, lease, try_lease
from singleflight.stores import open_store
from tests.torture import mutants
from tests.torture.body import work
from tests.torture.journal import Journal, recorded

READY = "ready"
"""What it prints when it has started, which takes long on a busy machine."""

OUTCOMES = [*[Outcome.FINISHED] * 6, Outcome.FAILED, Outcome.RETRYING, Outcome.REQUEUED]


@dataclass(frozen=True)
class Orders:
    """What a client process is told."""

    url: str
    folder: str
    name: str
    seed: int
    keys: int
    ttl: float
    threads: int = 2
    remember: float = 7200.0
    timeout: float = 0.5
    pause: float = 0.15
    """The longest pause between two claims of a thread, in seconds."""

    def encode(self) -> str:
        """Return it as an argument."""
        return json.dumps(asdict(self))


class Client:
    """The threads of one process."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.journal = Journal(orders.folder, orders.name)
        self.store = recorded(open_store(orders.url, timeout=orders.timeout), self.journal)
        self.over = Path(orders.folder) / "over"

    def run(self) -> None:
        """Work until the file `over` is there."""
        threads = [
            threading.Thread(target=self.work, args=(number,), daemon=True)
            for number in range(self.orders.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def work(self, number: int) -> None:
        """Be one thread."""
        chance = random.Random(f"{self.orders.seed} {self.orders.name} {number}")
        known: list[tuple[str, str]] = []
        while not self.over.exists():
            with suppress(SingleflightError):
                self.turn(chance, known)
            pause(chance.uniform(0, self.orders.pause))

    def turn(self, chance: random.Random, known: list[tuple[str, str]]) -> None:
        """Ask for one lease, and do what it is for."""
        key = f"key{chance.randrange(self.orders.keys)}"
        ttl, run = self.orders.ttl * chance.choice([1, 1, 0.5]), None
        window = 0.0
        kind = chance.choice(["try", "try", "wait", "copy", "window", "shared"])
        if kind == "copy" and known:
            key, run = chance.choice(known)
        if kind == "window":
            key, window = f"windowed{chance.randrange(2)}", self.orders.ttl * 0.7
        if kind == "shared":
            # The same run for all clients, as messages that are delivered again.
            run = f"shared-{key}-{int(time.monotonic() / 2)}"
        if kind == "wait":
            with suppress(Conflict), lease(self.store, key, ttl=ttl, wait=self.orders.ttl * 2) as held:
                work(self.journal, held, self.length(chance))
            return
        held = try_lease(self.store, key, ttl=ttl, window=window, run_id=run)
        if not isinstance(held, Lease):
            return
        known.append((key, held.run_id))
        del known[:-20]
        outcome = chance.choice(OUTCOMES)
        if outcome is Outcome.REQUEUED and chance.random() < 0.5:
            held.began = False
        else:
            work(self.journal, held, self.length(chance), heed=chance.random() < 0.7)
        grace = chance.choice([0, 0, 0, 0, self.orders.ttl / 4])
        held.release(outcome, grace=grace)

    def length(self, chance: random.Random) -> float:
        """Return how long a body works: mostly not long, sometimes longer than a ttl."""
        return chance.choice([0.0, 0.05, 0.1, 0.3, self.orders.ttl * 1.5, self.orders.ttl * 2.5])


def pause(seconds: float) -> None:
    """Wait, also under libfaketime."""
    threading.Event().wait(max(0.0, seconds))


def main() -> None:
    """Do as told."""
    time.sleep = pause  # type: ignore[assignment] - libfaketime breaks the real one
    mutants.apply()
    client = Client(Orders(**json.loads(sys.argv[1])))
    print(READY, flush=True)
    client.run()


if __name__ == "__main__":
    main()
