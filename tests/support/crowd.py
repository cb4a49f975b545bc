"""A crowd that counts in a file, one at a time: `python -m tests.support.crowd` with a `Crowd` as JSON.

One process opens the store, uses it, and forks the others. Each of their threads takes the lease, reads the
file, dawdles, writes one more, and gives the lease back, until it has done its part. An update is missing at
the end if two were inside at once. Every process prints the number of its updates, and the time it believes
it is; one that kills itself in the middle of an update prints the updates it had completed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import uniform

from singleflight import Lease, Outcome, StoreUnavailable, try_lease
from singleflight.stores import open_store
from tests.support.child import DIE_WITH_PARENT
from tests.support.servers import missing


@dataclass(frozen=True)
class Crowd:
    """What to do; `each` is the number of updates of one thread."""

    url: str
    name: str
    counter: str
    processes: int = 4
    threads: int = 5
    each: int = 10
    ttl: float = 10.0
    dawdle: float = 0.002
    poll: float = 0.2
    """The longest pause of one who was refused, in seconds."""
    suicide: bool = False
    """Whether the first process kills itself inside its third update."""
    once: bool = False
    """Whether each thread claims once, at the same moment, and keeps what it gets."""
    timeout: float = 20.0
    environments: list[dict[str, str]] = field(default_factory=list)
    """Variables by process, in turn; those given make it start afresh instead of being forked."""


@dataclass(frozen=True)
class Count:
    """What one process did."""

    updates: int
    refused: int
    now: float


def wrong_clock(offset: str) -> dict[str, str]:
    """Return the variables that put a process's clock off, such as by "+1h"."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        missing("libfaketime", "sudo apt-get install faketime")
    # Monotonic time stays right: waits that go by it would hang.
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def run(crowd: Crowd, timeout: float = 200) -> list[Count]:
    """Run a crowd to its end and return what each of its processes did."""
    Path(crowd.counter).write_text("0")
    environments = crowd.environments or [{}]
    parts = [
        Crowd(**{**asdict(crowd), "processes": crowd.processes // len(environments), "environments": []})
        for _ in environments
    ]
    children = [
        subprocess.Popen(
            [*DIE_WITH_PARENT, sys.executable, "-m", __name__, json.dumps(asdict(part))],
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for part, environment in zip(parts, environments, strict=True)
    ]
    try:
        counts = []
        for child in children:
            output, errors = child.communicate(timeout=timeout)
            assert child.returncode == 0, errors[-3000:]
            counts += [Count(**json.loads(line)) for line in output.splitlines()]
        return counts
    finally:
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


class Member:
    """One process of the crowd."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.crowd, self.number = crowd, number
        self.store = open_store(crowd.url, timeout=crowd.timeout)
        self.updates = self.refused = 0
        self.counting = threading.Lock()

    def work(self) -> None:
        """Do one thread's part."""
        if self.crowd.once:
            answer = self.ask()
            with self.counting:
                self.updates += isinstance(answer, Lease)
                self.refused += not isinstance(answer, Lease)
            return
        for _ in range(self.crowd.each):
            while not isinstance(lease := self.ask(), Lease):
                self.refused += 1
                pause(uniform(self.crowd.poll / 10, self.crowd.poll))
            self.update()
            lease.release(Outcome.FINISHED)

    def ask(self) -> object:
        """Ask for the lease once; a store that is away is no answer."""
        try:
            return try_lease(self.store, self.crowd.name, ttl=self.crowd.ttl)
        except StoreUnavailable:
            if self.crowd.once:
                raise
            return None

    def update(self) -> None:
        """Read, dawdle, write: an update that comes between is lost."""
        counter = Path(self.crowd.counter)
        seen = int(counter.read_text())
        pause(self.crowd.dawdle)
        if self.crowd.suicide and self.number == 0 and self.updates == 2:
            self.report()
            os.kill(os.getpid(), signal.SIGKILL)
        # In one step, so that a reader never finds an empty file.
        new = counter.with_name(f"{counter.name}-{os.getpid()}-{threading.get_ident()}")
        new.write_text(str(seen + 1))
        new.replace(counter)
        with self.counting:
            self.updates += 1

    def report(self) -> None:
        """Print one line, in one write."""
        line = json.dumps(asdict(Count(self.updates, self.refused, time.time())))
        os.write(1, f"{line}\n".encode())


def pause(seconds: float) -> None:
    """Wait, also under libfaketime, where time.sleep fails."""
    threading.Event().wait(seconds)


def main() -> None:
    """Be the crowd: use the store, fork, work, and wait for all."""
    crowd = Crowd(**json.loads(sys.argv[1]))
    if "FAKETIME" in os.environ:
        time.sleep = pause
    first = Member(crowd, 0)
    lease = try_lease(first.store, f"{crowd.name} of {os.getpid()}")
    assert isinstance(lease, Lease)
    lease.release()
    children = []
    gate, opener = os.pipe()
    for number in range(crowd.processes):
        child = os.fork()
        if child == 0:
            os.close(opener)
            status = 1
            try:
                first.number = number
                threads = [threading.Thread(target=first.work) for _ in range(crowd.threads)]
                os.read(gate, 1)  # returns in all of them at once, when the opener is closed
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                first.report()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(opener)
    ends = [os.waitpid(child, 0)[1] for child in children]
    expected = [signal.SIGKILL, *[0] * (crowd.processes - 1)] if crowd.suicide else [0] * crowd.processes
    assert ends == expected, ends
    again = try_lease(first.store, f"{crowd.name} of {os.getpid()}")
    assert isinstance(again, Lease), "the parent's store no longer works"
    again.release()


if __name__ == "__main__":
    main()
