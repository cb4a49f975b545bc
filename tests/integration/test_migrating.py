"""`docs/migrating.md`, run: each block's tasks do on a real worker what the page says they do."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest
import redis

from singleflight import Conflict, Singleton
from tests.integration import migrated_app, worker_app
from tests.support.child import Child
from tests.support.commands import import_path
from tests.support.rig import Rig
from tests.support.servers import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.migrated_app import Block


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run one worker with the page's tasks; leases go to the broker's server, as the page installs it."""
    with Rig(tmp_path_factory.mktemp("migrating")) as rig:
        yield rig.start(1, concurrency=4, args=["-I", migrated_app.__name__])


@pytest.fixture(scope="module")
def page(rig: Rig) -> list[Block]:
    """Return the page's blocks, as run on the publisher's app."""
    return migrated_app.declare(rig.app)


def task(page: list[Block], name: str) -> Any:
    """Return a task of the page."""
    (found,) = [block.used[name] for block in page if name in block.used]
    return found


def finish(rig: Rig, key: str, *results: Any) -> list[Any]:
    """Let the bodies of a key end, and return the results' values."""
    (rig.folder / f"gate-{key}").touch()
    return [result.get(timeout=30) for result in results]


def test_every_block_of_the_page_is_used() -> None:
    """What was before is Python too (or a command), and each block defines a task or is tested below."""
    page = migrated_app.blocks()

    for block in page:
        if block.is_python:
            compile(block.before, "before", "exec")
    assert len(page) == 6
    assert [block.before for block in page if not block.is_python] == [
        "celery -A shop beat --scheduler redbeat.RedBeatScheduler\n"
    ]


def test_celery_singletons_users_get_the_result_of_the_one_that_is_there(rig: Rig, page: list[Block]) -> None:
    """A duplicate by `unique_on` gets the first one's result; with raise_on_duplicate, a Conflict."""
    recalculate, import_feed = task(page, "recalculate"), task(page, "import_feed")
    first = recalculate.delay("account")
    rig.wait_start("account")
    second = recalculate.delay(account_id="account", reason="clicked again")
    import_feed.delay("feed")
    with pytest.raises(Conflict):
        import_feed.delay("feed")

    assert (second.id, second.duplicate) == (first.id, True)
    finish(rig, "feed")
    finish(rig, "account", first)
    assert len(rig.runs("account")) == 1


def test_celery_onces_users_get_a_result_with_an_id(rig: Rig, page: list[Block]) -> None:
    """A graceful duplicate is quiet, one call can raise, and `unlock_before_run` lets one wait."""
    send_invoice, rebuild_index = task(page, "send_invoice"), task(page, "rebuild_index")
    first = send_invoice.delay("invoice")
    rig.wait_start("invoice")
    second = send_invoice.delay("invoice", copy_to="me")
    with pytest.raises(Conflict):
        send_invoice.apply_async(("invoice",), singleton=Singleton(on_conflict="raise"))
    running = rebuild_index.delay("index")
    rig.wait_start("index")
    waiting, third = rebuild_index.delay("index"), rebuild_index.delay("index")

    assert (second.id, second.duplicate) == (first.id, True)
    assert (waiting.duplicate, third.duplicate, third.id) == (False, True, waiting.id)
    finish(rig, "invoice", first)
    finish(rig, "index", running, waiting)
    assert [run.run for run in rig.runs("index")] == [running.id, waiting.id]


def test_celery_heimdalls_users_get_the_result_of_the_one_that_is_there(rig: Rig, page: list[Block]) -> None:
    """Unique by all arguments, also while the first one waits in a queue that is an hour long."""
    generate_report = task(page, "generate_report")
    first = generate_report.apply_async(("customer",), countdown=1)
    second = generate_report.delay(customer_id="customer")

    assert (second.id, second.duplicate) == (first.id, True)
    rig.wait_start("customer")
    finish(rig, "customer", first)
    assert len(rig.runs("customer")) == 1


def test_the_recipes_users_get_none_for_a_duplicate(rig: Rig, page: list[Block]) -> None:
    """With skip_result=None a duplicate succeeds with None, and only one fetches."""
    fetch_feed = task(page, "fetch_feed")
    first = fetch_feed.delay("recipe")
    rig.wait_start("recipe")
    second = fetch_feed.delay("recipe")

    assert second.get(timeout=30) is None
    assert second.state == "SUCCESS"
    finish(rig, "recipe", first)
    assert len(rig.runs("recipe")) == 1


def test_redbeats_users_need_no_leader(rig: Rig) -> None:
    """Of two beats started by the page's command, with its settings, either goes on when the other dies."""
    if importlib.util.find_spec("redbeat") is None:
        missing("redbeat", f"{sys.executable} -m pip install celery-redbeat")
    (command,) = [block.after for block in migrated_app.blocks() if not block.is_python]
    argv = [sys.executable, "-m", *shlex.split(command.replace("shop", migrated_app.__name__))]
    conf = {
        "beat_schedule": {"tick": {"task": "plain", "schedule": 1.0, "args": ["tick"]}},
        "beat_max_loop_interval": 1,
        "redbeat_redis_url": rig.broker.url.replace("/0", "/1"),
    }
    env = {
        **import_path(rig.folder),
        "CELERY_BROKER_URL": rig.broker.url,
        worker_app.FOLDER: str(rig.folder),
        worker_app.CONF: json.dumps(conf),
    }
    beats = [Child(argv, log=rig.folder / f"beat{n}.log", ready="beat v", env=env) for n in (1, 2)]
    try:
        for beat in beats:
            beat.wait_ready()
            rig.wait_start("tick", len(rig.runs("tick")) + 2)
        beats[0].kill()
        rig.wait_start("tick", len(rig.runs("tick")) + 2)
        assert beats[1].alive
        with redis.Redis.from_url(conf["redbeat_redis_url"]) as client:
            assert list(client.scan_iter("redbeat:tick"))  # the schedule is where it was
            assert not list(client.scan_iter("*lock*"))
    finally:
        for beat in beats:
            beat.kill()
