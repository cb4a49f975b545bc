"""The Celery app of the demo: what a user writes, plus lines for the log that the verdict is taken from.

The demo starts workers and beats with ``-A demo.app``.
"""

# mypy: disable-error-code="untyped-decorator"
# Celery ships no types.

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery import Celery, current_task
from celery.schedules import schedstate, schedule
from celery.signals import before_task_publish

from demo.log import WITHOUT, Log
from demo.scenario import IMPORT, INTERVAL, RECALCULATE, REPORT, TTL, Work, label
from singleflight import Event, Kind, Singleton, current_lease
from singleflight.celery import install

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from singleflight.events import Listener

log = Log.inherited()


def tell(event: Event) -> None:
    """Write what happens to leases: the view and the counts of skips come from it, no judgement does."""
    if event.kind not in (Kind.GRANTED, Kind.RELEASED):
        log.write("said", kind=event.kind, task=event.task, run=event.run_id, text=str(event))


class OnTheClock(schedule):  # type: ignore[misc]
    """Due whenever the clock's seconds are a multiple of the interval: a crontab for seconds."""

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Say whether a tick is due since the last, and in how many seconds to look again."""
        now = self.now().timestamp()
        last = self.maybe_make_aware(last_run_at).timestamp()
        due = _after(last) <= now
        return schedstate(due, (_after(now) if due else _after(last)) - now)


def _after(moment: float) -> float:
    return (moment // INTERVAL + 1) * INTERVAL


url = os.environ["CELERY_BROKER_URL"]
app = Celery("demo", broker=url, backend=url)
app.conf.update(
    broker_connection_retry_on_startup=True,
    # A run whose process is killed comes back: that is what the second half of the demo is about.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    beat_schedule={"report": {"task": REPORT.task, "schedule": OnTheClock(INTERVAL)}},
)
listeners: list[Listener] = [tell]
if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    from singleflight.metrics import prometheus

    listeners.append(prometheus())
install(app, enabled=WITHOUT not in os.environ, defaults=Singleton(ttl=TTL), listeners=listeners)


@app.task(name=REPORT.task, singleton=True)
def report() -> None:
    """Take longer than the schedule allows: every second tick meets a running report and is skipped."""
    with _witnessed(REPORT):
        time.sleep(REPORT.seconds)


@app.task(name=RECALCULATE.task, singleton=Singleton(by="account_id", on_conflict="coalesce"))
def recalculate(account_id: str) -> None:
    """Ten clicks: one runs, one runs again afterwards and sees what the clicks changed."""
    with _witnessed(RECALCULATE, account_id=account_id):
        time.sleep(RECALCULATE.seconds)


@app.task(name=IMPORT.task, singleton=Singleton(by=(), on_conflict="defer"))
def import_file(name: str) -> None:
    """One import at a time, but every one of them."""
    with _witnessed(IMPORT, name=name):
        time.sleep(IMPORT.seconds)


@contextmanager
def _witnessed(work: Work, **kwargs: object) -> Iterator[None]:
    run, lease = current_task.request.id, current_lease()
    fence = lease.fence if lease else 0
    body = f"{os.getpid()}-{os.urandom(4).hex()}"
    log.write("start", body=body, task=work.task, key=label(work.task, kwargs), run=run, fence=fence)
    how = "returned"
    try:
        yield
    except BaseException as error:
        how = type(error).__name__
        raise
    finally:
        log.write("end", body=body, how=how)


@before_task_publish.connect
def _sent(sender: str = "", headers: Any = None, body: Any = None, **_: Any) -> None:
    # Workers publish too, when they defer a run; that is no new run.
    if not log.process.startswith("worker"):
        slot = int(time.time() // INTERVAL)
        log.write("sent", task=sender, key=label(sender, body[1]), run=headers["id"], slot=slot)
