"""The play: start everything, kill what is to be killed, wait until all is over, end everything."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from demo import servers
from demo.children import Child, ChildFailed, Children
from demo.facts import Facts
from demo.log import DESCRIPTOR, PROCESS, WITHOUT, Log
from demo.scenario import (
    BEATS,
    EARLIEST,
    INTERVAL,
    KILL_BEAT_AT,
    KILL_CHILD_AT,
    LATEST,
    POOL,
    REPORT,
    SETTLING,
    WORKERS,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.facts import Body

ROOT = str(Path(__file__).parents[1])
"""Where children find this package, whatever directory the demo was started in."""
APP = "demo.app"
LOOK = 0.1
"""Seconds between two looks at the log."""
QUIET = 1.5
"""Seconds without anything under way after which the demo is over: time for a late copy to show itself."""
BETWEEN = 0.75
"""Where between two ticks a beat is killed, and the last tick is waited for: as a share of the interval."""


@dataclass(slots=True)
class Performance:
    """One demo as it happens; the view looks at it."""

    seconds: float
    watch: Callable[[Performance], None]
    """Called about ten times a second."""
    without: bool = False
    """Whether to play it without singleflight."""
    server: str = ""
    stage: str = "starting"
    facts: Facts = field(default_factory=Facts)
    beats: list[Child] = field(default_factory=list)
    """The replicas that have not been killed."""
    essential: list[Child] = field(default_factory=list)
    """What else must not end by itself: the server and the workers."""
    log: Log = field(default_factory=Log.create)
    children: Children = field(default_factory=Children)

    def run(self) -> Facts:
        """Play it, and return what the log says in the end.

        Raises:
            NoServer: if there is no server to play on.
            ChildFailed: if a process does not start, or ends by itself.
        """
        with self.children:
            users = self._start()
            self._play(users)
            self._settle()
        return self.facts

    @property
    def elapsed(self) -> float:
        """Seconds since everything was up."""
        return 0.0 if self.facts.opened is None else time.monotonic() - self.facts.opened[0]

    def _start(self) -> Child:
        port = servers.free_port()
        self.server, argv = servers.command(port)
        server = self.children.add(Child("server", argv, env=dict(os.environ)))
        self._until(lambda: servers.answers(port), 20, server)
        self.essential.append(server)
        url = f"redis://127.0.0.1:{port}/0"
        celery = [sys.executable, "-m", "celery", "-A", APP]
        for n in range(1, BEATS + 1):
            scheduler = "celery.beat:Scheduler" if self.without else "singleflight"
            options = ["--scheduler", scheduler, "--pidfile=", "-l", "INFO"]
            self.beats.append(self._child(f"beat {n}", [*celery, "beat", *options], url))
        for n in range(1, WORKERS + 1):
            options = ["-n", f"worker{n}@%h", "-c", str(POOL), "-l", "INFO", "--without-mingle"]
            self.essential.append(self._child(f"worker {n}", [*celery, "worker", *options], url))
        module = "demo.users"
        users = self._child("users", [sys.executable, "-m", module, str(self.seconds)], url)
        signs = {"beat": "beat: Starting...", "worker": " ready.", "users": "users: ready."}
        for child in (*self.beats, *self.essential[1:], users):
            sign = signs[child.name.partition(" ")[0]]
            self._until(functools.partial(_says, child, sign), 60, child)
            self.log.write("up", whom=child.name)
        return users

    def _child(self, name: str, argv: list[str], url: str) -> Child:
        # Celery's own variables would go before the app's configuration.
        ours = {key: value for key, value in os.environ.items() if not key.startswith("CELERY_")}
        env = ours | {"CELERY_BROKER_URL": url, DESCRIPTOR: str(self.log.descriptor), PROCESS: name}
        env |= {WITHOUT: "1"} if self.without else {}
        env |= {"PYTHONPATH": os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])}
        env |= {"PYTHONUNBUFFERED": "1", "TMPDIR": self.children.directory}
        return self.children.add(Child(name, argv, env=env, pass_fds=[self.log.descriptor]))

    def _play(self, users: Child) -> None:
        self.stage = "playing"
        self.log.write("open", slot=int(time.time() // INTERVAL) + 1)
        users.say("go")
        self._look()
        beat_at, child_at = KILL_BEAT_AT * self.seconds, KILL_CHILD_AT * self.seconds
        beat_killed = child_killed = False
        while self.elapsed < self.seconds or _between_ticks() < BETWEEN:
            self._look()
            if not beat_killed and self.elapsed > beat_at and _between_ticks() > BETWEEN:
                self._kill(self._busiest_beat())
                beat_killed = True
            if not child_killed and self.elapsed > child_at and (body := self._in_the_middle()):
                self._kill_child(body)
                child_killed = True
            self._check_alive()
        self.log.write("close", slot=int(time.time() // INTERVAL))

    def _settle(self) -> None:
        self.stage = "settling"
        for beat in self.beats:
            beat.process.terminate()
        self.beats.clear()
        deadline = time.monotonic() + SETTLING
        quiet_since = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() < quiet_since + QUIET:
            self._look()
            self._check_alive()
            if self.facts.unfinished() or self.facts.running():
                quiet_since = time.monotonic()
        self.stage = "over"
        self._look()

    def _busiest_beat(self) -> Child:
        """Return the replica that has sent the last tick: the one that all depends on, if one does."""
        last = next((sent.process for sent in reversed(self.facts.sent) if sent.by_beat), "beat 1")
        return next(beat for beat in self.beats if beat.name == last)

    def _in_the_middle(self) -> Body | None:
        now = time.monotonic()
        for body in self.facts.running():
            if body.task == REPORT.task and EARLIEST < now - body.started < LATEST:
                return body
        return None

    def _kill(self, beat: Child) -> None:
        self.log.write("kill", whom=beat.name, victim=beat.pid)
        beat.kill()
        self.beats.remove(beat)

    def _kill_child(self, body: Body) -> None:
        self.log.write("kill", whom=body.process, victim=body.pid)
        os.kill(body.pid, signal.SIGKILL)

    def _check_alive(self) -> None:
        for child in (*self.essential, *self.beats):
            if not child.alive:
                raise ChildFailed(f"{child.name} ended by itself:\n{child.tail()}")

    def _look(self) -> None:
        self.facts.add(self.log.read_new())
        self.watch(self)
        time.sleep(LOOK)

    def _until(self, condition: Callable[[], bool], timeout: float, child: Child) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if not child.alive or time.monotonic() > deadline:
                what = f"did not start within {timeout:g} s" if child.alive else "ended while it started"
                raise ChildFailed(f"{child.name} {what}:\n{child.tail()}")
            self._check_alive()  # a process that waits for one that is gone would wait until the timeout
            self._look()


def _says(child: Child, sign: str) -> bool:
    return sign in child.output()


def _between_ticks() -> float:
    """Return where the clock is between two ticks, from 0 to 1."""
    return time.time() / INTERVAL % 1
