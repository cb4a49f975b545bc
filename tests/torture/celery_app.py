"""The app, for `celery -A tests.torture.celery_app worker`."""

from __future__ import annotations

from tests.torture.messages_app import make_celery

app = make_celery()
