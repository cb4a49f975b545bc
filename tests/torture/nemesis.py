"""What is done to processes, connections, clocks and the store: planned from a seed, then done."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.proxy import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.child import Child
    from tests.torture.journal import Journal
    from tests.torture.stores import Target

PROCESSES = ("kill", "stop")
NETWORK = ("reset", "hold", "deaf", "slow", "refuse")
SERVER = ("restart", "pause")
FAULTS = (*PROCESSES, *NETWORK, *SERVER, "step")

PAUSE = (0.3, 1.5)
"""Seconds between two faults, at random."""


@dataclass(frozen=True)
class Deed:
    """One fault: when, which, whom by number, and for how long; seconds."""

    at: float
    what: str
    whom: int
    length: float

    def __str__(self) -> str:
        return f"{self.at:6.2f} s  {self.what} {self.whom} for {self.length:.2f} s"


def plan(seed: int, seconds: float, faults: Sequence[str], ttl: float) -> list[Deed]:
    """Return what to do, always the same for a seed."""
    chance = random.Random(f"nemesis {seed}")
    deeds, at = [], 1.0
    while faults and at < seconds - 1:
        what = chance.choice(faults)
        length = chance.choice([0.1, 0.5, 1.0, 1.7]) * ttl
        if what in SERVER:
            length = min(length, ttl)
        deeds.append(Deed(round(at, 3), what, chance.randrange(1000), round(length, 3)))
        at += chance.uniform(*PAUSE)
    return deeds


class Nemesis:
    """Does what was planned, and undoes it; a thread.

    Args:
        deeds: the plan.
        children: processes that may be killed (they are started again) or stopped.
        target: the store.
        clocks: a file that the clocks of some clients go by.
        journal: where it writes down what it did.
    """

    def __init__(
        self,
        deeds: Sequence[Deed],
        children: Sequence[Child],
        target: Target,
        clocks: Path,
        journal: Journal,
    ) -> None:
        self.deeds, self.children, self.target = deeds, children, target
        self.clocks, self.journal = clocks, journal
        self.done: list[str] = []
        self.killed: list[Child] = []
        self.errors: list[BaseException] = []
        self._undo: list[threading.Timer] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._over = threading.Event()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, with all that was done undone."""
        self._over.set()
        self._thread.join(60)
        for timer in self._undo:
            timer.join(60)
        if self.errors:
            raise self.errors[0]

    def kills_of(self, children: Sequence[Child]) -> int:
        """Return how often one of these was killed."""
        return sum(child in children for child in self.killed)

    def _run(self) -> None:
        begun = time.monotonic()
        for deed in self.deeds:
            if self._over.wait(max(0, begun + deed.at - time.monotonic())):
                return
            try:
                getattr(self, f"_{deed.what}")(deed)
            except BaseException as error:  # noqa: BLE001 - told where the run ends
                self.errors.append(error)
                return
            self.done.append(deed.what)
            facts = {"what": deed.what, "whom": deed.whom, "length": deed.length}
            self.journal.write("deed", **facts)

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, undo)
        timer.start()
        self._undo.append(timer)

    def _kill(self, deed: Deed) -> None:
        child = self.children[deed.whom % len(self.children)]
        self.killed.append(child)
        child.kill()
        child.start()

    def _stop(self, deed: Deed) -> None:
        pid = self.children[deed.whom % len(self.children)].pid
        for each in (pid, *self.children[deed.whom % len(self.children)].children()):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
                self._later(deed.length, lambda each=each: _continue(each))

    def _reset(self, deed: Deed) -> None:
        self.target.proxies[deed.whom % len(self.target.proxies)].reset()

    def _hold(self, deed: Deed) -> None:
        self._mode(deed, Mode.HOLD)

    def _deaf(self, deed: Deed) -> None:
        self._mode(deed, Mode.DROP_REPLIES)

    def _slow(self, deed: Deed) -> None:
        proxy = self.target.proxies[deed.whom % len(self.target.proxies)]
        proxy.delay = 0.12
        self._later(deed.length, lambda: setattr(proxy, "delay", 0.0))

    def _refuse(self, deed: Deed) -> None:
        proxy = self.target.proxies[deed.whom % len(self.target.proxies)]
        proxy.refuse()
        time.sleep(min(deed.length, 1.0))
        proxy.accept_again()

    def _mode(self, deed: Deed, mode: Mode) -> None:
        proxy = self.target.proxies[deed.whom % len(self.target.proxies)]
        proxy.mode = mode
        self._later(deed.length, lambda: setattr(proxy, "mode", Mode.PASS))

    def _restart(self, _: Deed) -> None:
        self.target.server.restart()

    def _pause(self, deed: Deed) -> None:
        self.target.server.pause()
        time.sleep(deed.length)
        self.target.server.resume()

    def _step(self, deed: Deed) -> None:
        hours = (deed.whom % 7) - 3
        # Renamed into place: a client must never read half of it.
        new = self.clocks.with_suffix(".new")
        new.write_text(f"{hours * 3600:+d}s\n")
        new.replace(self.clocks)


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
