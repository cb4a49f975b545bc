"""One run: a store, clients, a nemesis; then the judge."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.child import Child
from tests.support.commands import import_path
from tests.support.crowd import wrong_clock
from tests.torture.beats import EVERY, Beats
from tests.torture.body import make_table
from tests.torture.client import READY, Orders
from tests.torture.journal import FOLDER, Journal, gathered
from tests.torture.judge import Fault, judge
from tests.torture.messages import Messages
from tests.torture.nemesis import FAULTS, NETWORK, SERVER, Deed, Nemesis, plan
from tests.torture.stores import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.torture.history import History

TTL = 1.0
"""Seconds: short, so that much lapses."""

DRAIN = 90.0
"""Seconds that only bound a failure: deferred runs come back one after the other."""

TICK_LATENESS = 10.0
"""Seconds for which a due time may wait: replicas may be stopped, or away from the store."""

LOOK = 2.0
"""Seconds between two looks of a judge that does not wait for the end."""


@dataclass(frozen=True)
class Setting:
    """What a run is about."""

    store: str = "valkey"
    seconds: float = 30.0
    seed: int = 1
    clients: int = 6
    keys: int = 3
    ttl: float = TTL
    faults: tuple[str, ...] = FAULTS
    frameworks: tuple[str, ...] = ()
    """`celery` and `dramatiq`: their workers and publishers, beside plain clients."""
    broker: str = "redis"
    beats: bool = False
    """Three replicas of one beat as well."""
    environment: dict[str, str] = field(default_factory=dict)
    until_wrong: bool = False
    """Judge while it runs, and end as soon as anything is wrong."""


@dataclass(frozen=True)
class Result:
    """What came of it."""

    setting: Setting
    history: History
    faults: list[Fault]
    deeds: Counter[str]
    folder: Path
    took: float = 0.0
    """Seconds until something wrong was found, if it was looked for while it ran; else all of them."""

    def counts(self) -> dict[str, int]:
        """Return the numbers for the table."""
        rules = Counter(fault.rule for fault in self.faults)
        return {
            "requests": len(self.history.requests),
            "grants": sum(one.answer == "granted" for one in self.history.requests),
            "unanswered": sum(not one.known for one in self.history.requests),
            "bodies": len(self.history.bodies),
            "deeds": self.deeds.total(),
            **{f"wrong: {rule}": count for rule, count in sorted(rules.items())},
        }


def possible(target: Target, faults: Sequence[str]) -> list[str]:
    """Return the faults that make sense for a store."""
    without = set() if target.proxies else set(NETWORK)
    if not target.restarts:
        without.add("restart")
    if target.server is None:
        without.update(SERVER)
    if not target.steps:
        without.add("step")
    return [fault for fault in faults if fault not in without]


def torture(setting: Setting, folder: Path, say: Callable[[str], None] = lambda _: None) -> Result:
    """Run it all and judge it."""
    folder.mkdir(parents=True, exist_ok=True)
    make_table(folder)
    journal = Journal(folder, "nemesis")
    clocks = folder / "clocks"
    clocks.write_text("+0s\n")
    with ExitStack() as stack:
        target = stack.enter_context(Target(setting.store))
        deeds = plan(setting.seed, setting.seconds, possible(target, setting.faults), setting.ttl)
        for deed in deeds:
            say(str(deed))
        journal.write("about", **_about(setting, target, deeds))
        messages = [
            stack.enter_context(
                Messages(name, setting.broker, target, folder, setting.seed, setting.environment)
            )
            for name in setting.frameworks
        ]
        children = [client(setting, target, folder, number, clocks) for number in range(setting.clients)]
        stack.callback(lambda: [child.kill() for child in children])
        beats = stack.enter_context(Beats(target, folder, setting.environment)) if setting.beats else None
        replicas = beats.replicas if beats else []
        workers = [worker for one in messages for worker in one.workers]
        nemesis = Nemesis(deeds, [*children, *workers, *replicas], target, clocks, journal)
        for child in children:
            child.wait_ready()
        nemesis.start()
        stack.callback(nemesis.stop)
        found = _until_wrong(setting, folder) if setting.until_wrong else time.sleep(setting.seconds)
        nemesis.stop()
        if found:
            return found
        (folder / "quiet").touch()
        for one in messages:
            one.drain(DRAIN)
        # What a killed holder had lapses, and what was late arrives.
        time.sleep(setting.ttl)
        (folder / "over").touch()
        _wait(children, 3 * setting.ttl + 5)
        if beats:
            beats.note(journal)
        lossy = setting.frameworks and setting.broker == "redis"
        journal.write("about", broker_may_lose=nemesis.kills_of(workers) if lossy else 0)
    history = gathered(folder)
    return Result(setting, history, judge(history), Counter(nemesis.done), folder, setting.seconds)


def _until_wrong(setting: Setting, folder: Path) -> Result | None:
    """Judge what there is so far, again and again."""
    began = time.monotonic()
    while time.monotonic() < began + setting.seconds:
        time.sleep(LOOK)
        history = gathered(folder)
        if faults := judge(history):
            return Result(setting, history, faults, Counter(), folder, time.monotonic() - began)
    return None


def client(setting: Setting, target: Target, folder: Path, number: int, clocks: Path) -> Child:
    """Start one process of clients; every third one has a clock that steps."""
    orders = Orders(
        url=target.urls[number % len(target.urls)],
        folder=str(folder),
        name=f"client{number}",
        seed=setting.seed,
        keys=setting.keys,
        ttl=setting.ttl,
        timeout=target.timeout,
    )
    environment = {FOLDER: str(folder), **target.environment, **setting.environment, **import_path(folder)}
    if target.steps and "step" in setting.faults and number % 3 == 2:
        environment |= wrong_clock("+0")
        del environment["FAKETIME"]
        environment |= {"FAKETIME_TIMESTAMP_FILE": str(clocks), "FAKETIME_NO_CACHE": "1"}
    return Child(
        [sys.executable, "-m", "tests.torture.client", orders.encode()],
        log=folder / f"client{number}.log",
        ready=READY,
        env=environment,
    )


def _about(setting: Setting, target: Target, deeds: list[Deed]) -> dict[str, Any]:
    return {
        "seed": setting.seed,
        "store": setting.store,
        "seconds": setting.seconds,
        "ttl": setting.ttl,
        "lateness": target.lateness,
        "every": EVERY if setting.beats else {},
        "tick_lateness": TICK_LATENESS,
        "plan": [str(deed) for deed in deeds],
    }


def _wait(children: Sequence[Child], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(child.alive for child in children):
        time.sleep(0.1)
