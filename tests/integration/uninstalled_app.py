"""An app whose author forgot `install`; nothing else of singleflight's Celery side is imported."""

from __future__ import annotations

import os

from celery import Celery

from singleflight import Singleton

app = Celery("forgot", broker=os.environ["CELERY_BROKER_URL"])
app.conf.broker_connection_retry_on_startup = True


@app.task(name="unprotected", singleton=Singleton())
def unprotected() -> None:
    """Ask for a lease in vain."""


if __name__ == "__main__":
    for _ in range(3):
        unprotected.delay()
