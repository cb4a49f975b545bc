"""Replicas of one beat, as a part of a run: what they publish is noted as it reaches the broker."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from singleflight.celery.schedule_times import tick_of
from singleflight.keys import lease_key
from tests.support.beats import Beat, Mailbox
from tests.support.servers import ValkeyServer
from tests.torture import messages_app as app
from tests.torture.journal import FOLDER, Journal, gathered

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from tests.torture.stores import Target

REPLICAS = 3
EVERY = {"each-second": 1.0, "each-two": 2.0}
"""Entries, and the seconds between two of their times."""


class Beats:
    """Three beats with one schedule; a context manager.

    Args:
        target: the store.
        folder: where journals and logs go.
        environment: more variables for all processes.
    """

    def __init__(self, target: Target, folder: Path, environment: dict[str, str]) -> None:
        self.target, self.folder, self._more = target, folder, environment
        self._stack = ExitStack()
        self.replicas: list[Beat] = []

    def __enter__(self) -> Self:
        try:
            broker = self._stack.enter_context(ValkeyServer())
            self._mailbox = self._stack.enter_context(Mailbox(broker.url))
            self.replicas = [self._beat(number, broker.url) for number in range(REPLICAS)]
            for beat in self.replicas:
                beat.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for beat in self.replicas:
            beat.kill()
        self._stack.close()

    def note(self, journal: Journal) -> None:
        """Write down what reached the broker, each with the time at which it was due, by who claimed it."""
        due: dict[str, float] = {}
        for one in gathered(self.folder).requests:
            entry = next((name for name in EVERY if one.key == _key(name)), None)
            if one.what == "claim" and entry:
                tick = tick_of(entry, one.asked["run_id"])
                assert tick is not None, one
                id_, at = tick.task_id(one.key), tick.at.timestamp()
                due[id_] = min(at, due.get(id_, at))
        for message in self._mailbox.messages:
            entry = next(name for name in EVERY if name in message.args)
            run = message.task_id
            journal.write("tick", at=message.at, entry=entry, due=due.get(run, message.at), run=run)

    def _beat(self, number: int, broker: str) -> Beat:
        name = f"beat{number}"
        schedule = {
            entry: {"task": "known.only.by_name", "schedule": every, "args": [entry]}
            for entry, every in EVERY.items()
        }
        environment = {
            app.BROKER: broker,
            app.STORE: self.target.urls[number % len(self.target.urls)],
            app.NAME: name,
            FOLDER: str(self.folder),
            **self.target.environment,
            **self._more,
        }
        return Beat(
            self.folder, environment, name=name, schedule=schedule, scheduler="singleflight",
            app="tests.torture.beat_app",
        )  # fmt: skip


def _key(entry: str) -> str:
    return lease_key("singleflight:beat", entry)
