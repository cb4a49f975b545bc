"""Scheduled actors, and schedulers that send to them: periodiq by its command, APScheduler by `main`."""

from __future__ import annotations

import os
import sys

import dramatiq
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger
from dramatiq.middleware import CurrentMessage
from periodiq import PeriodiqMiddleware, cron

from singleflight.dramatiq.occurrences import every, normal, periodiq
from tests.integration.dramatiq_actors import BROKER, make_broker, witness

broker = make_broker(os.environ[BROKER])
broker.add_middleware(PeriodiqMiddleware(skip_delay=120))
dramatiq.set_broker(broker)


@dramatiq.actor(singleton=True, occurrence=periodiq, periodic=cron("* * * * *"))
def minutely() -> None:
    """Run each minute."""
    message = CurrentMessage.get_current_message()
    witness("minutely", run=normal(periodiq(message)))


@dramatiq.actor(singleton=True, occurrence=every(2))
def ticking() -> None:
    """Run every other second."""
    message = CurrentMessage.get_current_message()
    witness("ticking", run=normal(every(2)(message)))


def main() -> None:
    """Send a message every other second, as APScheduler plans it."""
    scheduler = BlockingScheduler()
    scheduler.add_job(ticking.send, CronTrigger(second="*/2"))
    sys.stdout.write("scheduling\n")
    sys.stdout.flush()
    scheduler.start()


if __name__ == "__main__":
    main()
