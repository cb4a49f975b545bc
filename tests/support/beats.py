"""Real `celery beat` processes, and a consumer that notes which messages they publish."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import redis

from singleflight.celery.schedule_times import Tick, tick_of
from singleflight.keys import lease_key
from singleflight.stores.redis import RedisStore
from tests.support.bodylog import VARIABLE, BodyLog
from tests.support.child import Child
from tests.support.nodes import APP, WorkerContainer, celery_command, import_path
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Self

SCHEDULE = "BEAT_SCHEDULE"
"""Environment variable with the app's beat schedule as JSON."""
SETTINGS = "BEAT_SETTINGS"
"""Environment variable with further settings of `tests.support.beat_app` as JSON."""
DEATH = "BEAT_DEATH"
"""Environment variable that names a file; its content says where the next replica that comes by dies."""
SHARING = "tests.support.beat_app"
"""The app that has singleflight installed."""
CLAIMED = re.compile(r": run (\S+@\S+) (?:granted|took over)")
"""A claim in a beat's log."""


class Beat(Child):
    """One replica of `celery beat`, with its own schedule file.

    Args:
        folder: where its log and schedule file go.
        env: the app's environment (broker, body log).
        name: tells replicas apart.
        schedule: entry name -> Celery's entry, for example `{"task": "body", "schedule": 1.0}`.
        scheduler: as given to `celery beat --scheduler`; Celery's own if empty.
        args: further arguments.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        *,
        name: str = "beat1",
        schedule: Mapping[str, Mapping[str, object]],
        scheduler: str = "",
        app: str = APP,
        args: Sequence[str] = (),
    ) -> None:
        # An empty pid file name means none, so that replicas share a folder.
        options = ["-l", "DEBUG", "--pidfile=", "-s", folder / f"{name}.schedule"]
        options += ["--scheduler", scheduler] if scheduler else []
        super().__init__(
            [*celery_command(app), "beat", *options, *args],
            log=folder / f"{name}.log",
            ready="beat: Starting...",
            env={**import_path(folder), **env, SCHEDULE: json.dumps(schedule)},
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One published message."""

    at: float
    """Monotonic seconds."""
    task: str
    task_id: str
    args: str


class Mailbox:
    """Takes every message of the queue `celery` from a Redis or Valkey broker, and notes it with its time.

    A worker would hide what was published twice under one id, or too early; this judges the wire.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self.messages: list[Message] = []

    def of(self, tick: str) -> list[Message]:
        """Return the messages whose first argument is the text `tick`, in order."""
        return [message for message in self.messages if message.args.startswith(f"['{tick}'")]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _take(self) -> None:
        client = redis.Redis.from_url(self._url, socket_timeout=5)
        while not self._over.is_set():
            try:
                found = client.blpop(["celery"], timeout=1)
            except redis.RedisError:
                time.sleep(0.05)  # the test may have stopped the broker
                continue
            if found is not None:
                self.messages.append(_read(found[1], time.monotonic()))
        client.close()


def _read(raw: bytes, at: float) -> Message:
    headers = json.loads(raw)["headers"]
    return Message(at, headers["task"], headers["id"], headers["argsrepr"])


def entry(
    name: str, every: object, task: str = "known.only.by_name", args: Sequence[str] = ()
) -> dict[str, object]:
    """Return a beat entry whose messages can be told by their first argument, its own name unless given."""
    return {"task": task, "schedule": every, "args": list(args or [name])}


def twice(messages: Sequence[Message]) -> set[str]:
    """Return the task ids that were published more than once."""
    ids = [message.task_id for message in messages]
    return {one for one in ids if ids.count(one) > 1}


class Replicas:
    """A broker, a store of its own, a mailbox, and as many beats as a test starts; all ended on exit."""

    def __init__(self, folder: Path, *, mailbox: bool = True) -> None:
        self.folder = folder
        self.broker, self.store = ValkeyServer(), ValkeyServer()
        self.mailbox = Mailbox(self.broker.url)
        self.bodies = BodyLog(folder / "bodies.log")
        self._with_mailbox = mailbox
        self.death = folder / "death"
        self.settings: dict[str, object] = {"singleflight_url": self.store.url}
        self.schedule: dict[str, dict[str, object]] = {}
        self.environment: dict[str, str] = {}
        self.beats: list[Beat] = []
        self.workers: list[WorkerContainer] = []

    def start(self, *, ready: bool = True, **options: object) -> Beat:
        """Start one more replica; `options` are those of `Beat`."""
        given = {"scheduler": "singleflight", "app": SHARING, "name": f"beat{len(self.beats) + 1}", **options}
        schedule = given.pop("schedule", self.schedule)
        self.beats.append(Beat(self.folder, self._env(), schedule=schedule, **given))
        if ready:
            self.beats[-1].wait_ready()
        return self.beats[-1]

    def work(self, **options: object) -> WorkerContainer:
        """Start one more worker, which takes what the mailbox would."""
        env = {**self._env(), SCHEDULE: json.dumps(self.schedule), VARIABLE: str(self.bodies.path)}
        name = f"worker{len(self.workers) + 1}"
        self.workers.append(WorkerContainer(self.folder, env, app=SHARING, name=name, **options))
        self.workers[-1].ready()
        return self.workers[-1]

    def received(self, task: str) -> list[str]:
        """Return the ids of a task's messages that workers took, as often as they took them."""
        pattern = re.compile(rf"Task {re.escape(task)}\[([0-9a-f-]+)\] received")
        return [found for worker in self.workers for found in pattern.findall(worker.logs())]

    def _env(self) -> dict[str, str]:
        return {
            "CELERY_BROKER_URL": self.broker.url,
            SETTINGS: json.dumps(self.settings),
            DEATH: str(self.death),
            **self.environment,
        }

    def stop(self) -> None:
        """Stop every replica that runs, as an operator would."""
        running = [beat for beat in self.beats if beat.alive]
        for beat in running:
            beat.send(signal.SIGTERM)
        for beat in running:
            beat.wait()

    def wait_confirmed(self, name: str) -> None:
        """Wait until no replica is between sending and confirming: one killed just there costs a copy."""
        store, key = RedisStore(self.store.url), self.key(name)

        def confirmed() -> bool:
            look = store.peek(key)
            return look is not None and not look.record.held

        until(confirmed, what=f"a confirmation of {name}")
        store.close()

    def steps(self, name: str) -> list[float]:
        """Return the seconds between the moments at which an entry was due; a copy adds nothing."""
        ticks = self.claimed()
        moments = sorted({ticks[message.task_id].at for message in self.mailbox.of(name)})
        return [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]

    def faults(self, name: str, every: float, *, longest: float = 0.0) -> list[str]:
        """Return what is wrong with an interval's ticks: too close, too far apart, or claimed and never sent.

        ``longest`` is what may lie between two, built in twice the period: a busy machine is late.
        """
        steps = self.steps(name)
        sent = {message.task_id for message in self.mailbox.of(name)}
        claimed = sorted(
            (tick for tick in self.claimed().values() if tick.entry == name), key=lambda one: one.at
        )
        # The last one may have been given back at the stop.
        missing = [tick.run_id for tick in claimed[:-1] if tick.task_id(self.key(name)) not in sent]
        return [
            *(f"{step} s apart" for step in steps if not every <= step < (longest or 2 * every)),
            *(f"{run} was never sent" for run in missing),
        ]

    def claimed(self) -> dict[str, Tick]:
        """Return the tick behind each task id that any replica claimed; of several claims the first."""
        found: dict[str, Tick] = {}
        for run_id in {run for beat in self.beats for run in CLAIMED.findall(beat.log())}:
            tick = tick_of(run_id.rsplit("@", 2)[0], run_id)
            assert tick is not None
            task_id = tick.task_id(self.key(tick.entry))
            found[task_id] = min(tick, found.get(task_id, tick), key=lambda one: one.at)
        return found

    def known(self, name: str) -> bool:
        """Return whether the store knows anything of an entry."""
        store = RedisStore(self.store.url)
        look = store.peek(self.key(name))
        store.close()
        return look is not None

    def key(self, name: str) -> str:
        """Return the key of an entry's record."""
        return lease_key("singleflight:beat", name)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.broker)
            stack.enter_context(self.store)
            if self._with_mailbox:
                stack.enter_context(self.mailbox)
            stack.callback(lambda: [beat.kill() for beat in self.beats])
            stack.callback(lambda: [worker.child.kill() for worker in self.workers])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
