"""An actor scheduled by dramatiq-crontab, and by `main` its command, in a Django project of one setting."""

from __future__ import annotations

import os

import dramatiq
from django.conf import settings
from dramatiq.middleware import CurrentMessage

from singleflight.dramatiq.occurrences import every, normal
from tests.integration.dramatiq_actors import BROKER, make_broker, witness

# Its own lock would let one scheduler run only, and needs REDIS_URL.
settings.configure(INSTALLED_APPS=["dramatiq_crontab"], TIME_ZONE=os.environ.get("TZ", "UTC"), USE_TZ=True)

from dramatiq_crontab import cron  # noqa: E402 - reads the settings

broker = make_broker(os.environ[BROKER])
dramatiq.set_broker(broker)


@cron("* * * * *")
@dramatiq.actor(singleton=True, occurrence=every(60))
def minutely() -> None:
    """Run each minute."""
    witness("minutely", run=normal(every(60)(CurrentMessage.get_current_message())))


def main() -> None:
    """Do what `manage.py crontab` does."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("crontab", "--no-task-loading", "--no-heartbeat")


if __name__ == "__main__":
    main()
