"""Scheduler classes that users have, in replicas: Celery's file, redbeat, django-celery-beat; `worker -B`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.beats import Beat, Replicas, entry, twice
from tests.support.nodes import celery_command, import_path
from tests.support.servers import missing
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PERIOD = 2.0
"""Seconds; django-celery-beat knows whole ones only."""


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    """Return a place for replicas, with one entry."""
    with Replicas(tmp_path) as found:
        found.schedule = {"one": entry("one", PERIOD)}
        yield found


def celery_file(replicas: Replicas) -> None:
    """Have replicas keep their schedule in a file each, as `celery beat` does by default."""
    replicas.settings["singleflight_beat_scheduler"] = "celery.beat:PersistentScheduler"


def redbeat(replicas: Replicas) -> None:
    """Have replicas keep their schedule in Redis, all ticking: redbeat's own lock is off."""
    if importlib.util.find_spec("redbeat") is None:
        missing("redbeat", f"{sys.executable} -m pip install celery-redbeat")
    replicas.settings |= {
        "singleflight_beat_scheduler": "redbeat.RedBeatScheduler",
        "redbeat_redis_url": replicas.broker.url.replace("/0", "/1"),
        "redbeat_lock_key": None,
    }


def django(replicas: Replicas) -> None:
    """Have replicas keep their schedule in Django's database; `django` is the alias that it registers."""
    if importlib.util.find_spec("django_celery_beat") is None:
        missing("django-celery-beat", f"{sys.executable} -m pip install django-celery-beat")
    replicas.settings["singleflight_beat_scheduler"] = "django"
    replicas.environment |= {
        "DJANGO_SETTINGS_MODULE": "tests.support.django_settings",
        "DJANGO_DATABASE": str(replicas.folder / "django.sqlite"),
    }
    manage(replicas, "migrate", "-v0")


def manage(replicas: Replicas, *command: str) -> None:
    """Run a command of Django's on the replicas' database."""
    env = {**os.environ, **import_path(replicas.folder), **replicas.environment}
    subprocess.run(
        [sys.executable, "-m", "django", *command], env=env, cwd=replicas.folder, check=True, timeout=60
    )


def sent(replicas: Replicas, name: str = "one") -> int:
    """Return how often an entry was sent."""
    return len(replicas.mailbox.of(name))


@pytest.mark.parametrize("use", [celery_file, redbeat, django])
def test_replicas_of_any_scheduler_send_each_tick_once(
    replicas: Replicas, use: Callable[[Replicas], None]
) -> None:
    """Two replicas, of which one is killed and started again, send every tick once, in rhythm."""
    use(replicas)
    first, _ = replicas.start(), replicas.start()
    until(lambda: sent(replicas) >= 3, what="three ticks")
    replicas.wait_confirmed("one")
    first.kill()
    first.start()
    first.wait_ready()
    before = sent(replicas)
    until(lambda: sent(replicas) >= before + 3, what="three more ticks")
    replicas.stop()

    assert not twice(replicas.mailbox.messages)
    assert replicas.faults("one", PERIOD) == []
    for beat in replicas.beats:
        assert "Traceback" not in beat.log()


DJANGO = (
    "import django; django.setup()\nfrom django_celery_beat.models import IntervalSchedule, PeriodicTask\n"
)


def in_django(replicas: Replicas, code: str) -> None:
    """Run code that changes the schedule in the replicas' database."""
    env = {**os.environ, **import_path(replicas.folder), **replicas.environment}
    subprocess.run(
        [sys.executable, "-c", DJANGO + code], env=env, cwd=replicas.folder, check=True, timeout=60
    )


def test_an_entry_that_is_to_be_sent_once_in_django_is_sent_once(replicas: Replicas) -> None:
    """A one-off entry of django-celery-beat, which each replica counts for itself, is sent by one of them."""
    django(replicas)
    replicas.schedule = {}
    for _ in range(2):
        replicas.start()
    in_django(
        replicas,
        "every, _ = IntervalSchedule.objects.get_or_create(every=1, period='seconds')\n"
        "given = dict(interval=every, task='t')\n"
        "PeriodicTask.objects.create(name='once', args='[\"once\"]', one_off=True, **given)\n"
        "PeriodicTask.objects.create(name='often', args='[\"often\"]', **given)\n",
    )
    until(lambda: sent(replicas, "often") >= 6, what="ticks of the other entry")
    replicas.stop()

    assert sent(replicas, "once") == 1


def test_an_entry_that_is_added_changed_and_removed_in_django_is_followed(replicas: Replicas) -> None:
    """Replicas of django-celery-beat take up what is changed in the database while they run."""
    django(replicas)
    replicas.schedule = {}
    for _ in range(2):
        replicas.start()
    create = (
        "every, _ = IntervalSchedule.objects.get_or_create(every={}, period='seconds')\n"
        "given = dict(interval=every, task='t', args='[\"{}\"]')\n"
        "task, _ = PeriodicTask.objects.get_or_create(name='late', defaults=given)\n"
        "task.interval = every; task.args = given['args']; task.enabled = {}; task.save()\n"
    )

    # How many changes a replica has seen does not say which: two that come close together are one to it, and
    # what the replicas write back counts as well.
    in_django(replicas, create.format(1, "late", True))
    until(lambda: sent(replicas, "late") >= 3, what="ticks of the new entry")
    in_django(replicas, create.format(3600, "slowed", True))
    until(lambda: all(followed_by(beat, "slowed") for beat in replicas.beats), what="the change")
    replicas.wait_confirmed("late")
    slowed = sent(replicas, "late")
    in_django(replicas, create.format(1, "slowed", False))
    until(lambda: not any(followed_by(beat, "slowed") for beat in replicas.beats), what="the removal")
    replicas.stop()

    assert sent(replicas, "slowed") == 0
    assert sent(replicas, "late") == slowed
    assert not twice(replicas.mailbox.messages)


def followed_by(beat: Beat, state: str) -> bool:
    """Return whether a beat's present schedule, as it logs it after each change, says something."""
    return state in beat.log().rpartition("Current schedule:")[2].partition("beat:")[0]


@pytest.mark.timeout(240)  # a crontab's minute may be a whole one away
def test_every_kind_of_schedule_in_django_is_sent_once(replicas: Replicas) -> None:
    """Two replicas send an interval, a crontab and a clocked entry once each, and a solar one not yet."""
    django(replicas)
    replicas.schedule = {}
    for _ in range(2):
        replicas.start()
    in_django(
        replicas,
        "from datetime import timedelta\nfrom django.utils.timezone import now\n"
        "from django_celery_beat.models import ClockedSchedule, CrontabSchedule, SolarSchedule\n"
        "def add(name, **given):\n"
        "    PeriodicTask.objects.create(name=name, task='t', args=f'[\"{name}\"]', **given)\n"
        "add('interval', interval=IntervalSchedule.objects.create(every=1, period='seconds'))\n"
        "add('crontab', crontab=CrontabSchedule.objects.create())\n"
        "soon = ClockedSchedule.objects.create(clocked_time=now() + timedelta(seconds=2))\n"
        "add('clocked', clocked=soon, one_off=True)\n"
        + (
            "add('solar', solar=SolarSchedule.objects.create(event='sunset', latitude=48, longitude=11))\n"
            if importlib.util.find_spec("ephem")
            else ""
        ),
    )
    until(lambda: sent(replicas, "crontab") >= 1, 90, "the full minute")
    until(lambda: sent(replicas, "interval") >= 4 and sent(replicas, "clocked"), what="the others")
    replicas.stop()

    assert sent(replicas, "clocked") == 1
    assert not twice(replicas.mailbox.messages)
    assert replicas.faults("interval", 1.0, longest=5.0) == []
    assert all("Traceback" not in beat.log() for beat in replicas.beats)


@pytest.mark.parametrize("use", [celery_file, redbeat, django])
def test_what_all_missed_is_made_up_for_under_any_scheduler(
    replicas: Replicas, use: Callable[[Replicas], None]
) -> None:
    """With ``catch_up="all"`` each planned time is sent, though a database knows only the last one."""
    use(replicas)
    replicas.settings["singleflight_beat_entries"] = {"one": {"catch_up": "all", "catch_up_window": 3600}}
    replicas.start()
    until(lambda: sent(replicas) >= 2, what="two ticks")
    replicas.wait_confirmed("one")
    replicas.beats[0].kill()
    time.sleep(4 * PERIOD)
    before = sent(replicas)
    for _ in range(2):
        replicas.start()
    until(lambda: sent(replicas) >= before + 6, what="what was missed, and two more")
    replicas.stop()

    assert set(replicas.steps("one")) == {PERIOD}


def test_an_interval_is_sent_though_no_beat_lives_as_long_as_it(replicas: Replicas) -> None:
    """The only beat is killed before its entry is due: it counts from when the first one saw it."""
    replicas.schedule = {"one": entry("one", 8.0)}
    seen = time.monotonic()
    for _ in range(20):
        beat = replicas.start(name=f"beat{len(replicas.beats) + 1}")
        until(lambda: replicas.known("one") or sent(replicas), what="the first sight of the entry")
        time.sleep(1)  # it lives for a fraction of the period
        beat.kill()
        if sent(replicas) >= 2:
            break
    took = time.monotonic() - seen

    assert sent(replicas) >= 2
    assert sent(replicas) <= took / 8.0
    assert not twice(replicas.mailbox.messages)


def test_the_apps_own_scheduler_is_wrapped(replicas: Replicas) -> None:
    """With beat_scheduler = django-celery-beat's, --scheduler singleflight sends what is in the database."""
    django(replicas)
    del replicas.settings["singleflight_beat_scheduler"]
    replicas.settings["beat_scheduler"] = "django_celery_beat.schedulers:DatabaseScheduler"
    replicas.schedule = {}
    in_django(
        replicas,
        "every = IntervalSchedule.objects.create(every=1, period='seconds')\n"
        "PeriodicTask.objects.create(name='one', args='[\"one\"]', interval=every, task='t')\n",
    )
    beat = replicas.start()
    until(lambda: sent(replicas) >= 2, what="two ticks")

    assert "beat has nothing to send" not in beat.log()


def test_an_empty_schedule_beside_djangos_database_is_told_with_the_remedy(replicas: Replicas) -> None:
    """Where the database is installed and not read, beat names the setting that reads it."""
    django(replicas)
    del replicas.settings["singleflight_beat_scheduler"]
    replicas.schedule = {}
    beat = replicas.start()
    until(lambda: "beat has nothing to send" in beat.log(), what="the warning")

    assert "set beat_scheduler = 'django_celery_beat.schedulers:DatabaseScheduler'" in beat.log()


def test_workers_with_an_embedded_beat_share_their_ticks(tmp_path: Path) -> None:
    """Two `celery worker -B --scheduler singleflight` send each tick once, and each is run once."""
    with Replicas(tmp_path, mailbox=False) as replicas:
        replicas.schedule = {"one": entry("embedded", PERIOD, "once")}
        for number in range(2):
            replicas.work(
                concurrency=1,
                args=[
                    "-B",
                    "--scheduler",
                    "singleflight",
                    "-s",
                    tmp_path / f"embedded{number}",
                    "-l",
                    "DEBUG",
                ],
            )
        until(lambda: len(replicas.received("once")) >= 4, what="four ticks")

        received = replicas.received("once")
        assert len(received) == len(set(received))
        assert len(replicas.bodies.runs()) == 1


def test_a_beat_whose_app_has_no_leases_says_what_to_write(replicas: Replicas, tmp_path: Path) -> None:
    """Without install(app) the process ends at once, and its last word names the remedy."""
    env = {"CELERY_BROKER_URL": replicas.broker.url, "CELERY_RESULT_BACKEND": replicas.broker.url}
    command = [*celery_command("tests.integration.app"), "beat", "--pidfile=", "--scheduler", "singleflight"]
    run = subprocess.run(
        command,
        env={**os.environ, **import_path(tmp_path), **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert run.returncode != 0
    assert "call singleflight.celery.install(app)" in run.stderr + run.stdout
