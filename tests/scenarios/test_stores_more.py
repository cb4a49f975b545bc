"""Troubles from the field with databases and DynamoDB, by their numbers."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from singleflight import Busy, Event, Kind, Lease, StoreUnavailable, try_lease
from singleflight.events import Notify
from singleflight.keys import lease_key
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.leases.keeper import process_keeper
from singleflight.stores import open_store
from singleflight.stores.base import Claim
from singleflight.stores.dynamodb import DynamoStore
from singleflight.stores.dynamodb.clock import BOUND
from singleflight.stores.sql import SqlStore
from tests.support.child import DIE_WITH_PARENT
from tests.support.crowd import Crowd, run
from tests.support.databases import MariaServer, PostgresServer, TransactionPooler
from tests.support.dynamo import CREDENTIALS, Ministack
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.stores.base import Store
    from tests.support.databases import Server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=[PostgresServer, MariaServer])
def database(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A database with the tables, whose sessions are in a time zone that no process is in."""
    zone = "timezone=Asia/Kolkata" if request.param is PostgresServer else "--default-time-zone=+05:30"
    with request.param(zone) as server:
        SqlStore(server.url).set_up()
        yield server


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[str]:
    """A DynamoDB with the table."""
    with pytest.MonkeyPatch.context() as patch, Ministack() as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        DynamoStore.from_url(server.url).set_up()
        yield server.url


@pytest.fixture
def impatient(database: Server) -> Iterator[Store]:
    """A store in the database that does not wait for it for long."""
    with closing(open_store(database.url, timeout=0.5)) as store:
        yield store
        # A release that failed in the outage is tried again, and would open new connections.
        until(
            lambda: all(entry.store is not store for entry in process_keeper()._entries()),
            30,
            "the keeper's last errands",
        )


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"nightly-{uuid4().hex}"


def elsewhere(code: str, *arguments: str) -> str:
    """Run code in a process of its own, and return what it prints."""
    done = subprocess.run(
        [*DIE_WITH_PARENT, sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


TAKE_AND_DIE = """
import os, signal, sys
from singleflight import try_lease
print(try_lease(sys.argv[1], sys.argv[2], ttl=5).held, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
TRY_ONCE = """
import sys
from singleflight import Lease, try_lease
answer = try_lease(sys.argv[1], sys.argv[2], ttl=5)
print(isinstance(answer, Lease))
"""


def test_scenario_13_a_very_long_name_is_a_key_like_any_other(database: Server) -> None:
    """A lease whose name is ten thousand characters long is had, seen by others, and given back."""
    name = "r" * 10_000 + uuid4().hex
    first = try_lease(database.url, name)

    assert isinstance(first, Lease)
    assert isinstance(try_lease(database.url, name), Busy)
    assert first.release()
    again = try_lease(database.url, name)
    assert isinstance(again, Lease)
    again.release()


def test_scenario_50_and_51_a_dead_holders_item_is_free_for_the_first_single_try(
    dynamodb: str, name: str
) -> None:
    """After the lease of a killed holder is over, a brand-new process gets it with its only try."""
    start = time.monotonic()
    assert elsewhere(TAKE_AND_DIE, dynamodb, name) == "True"
    store = DynamoStore.from_url(dynamodb, timeout=10)
    item = store._get(lease_key("singleflight", name))
    store.close()
    assert item is not None
    assert elsewhere(TRY_ONCE, dynamodb, name) == "False", "the lease did not outlive its holder"
    time.sleep(max(0.0, start + 5 + 2 * BOUND - time.monotonic()))
    # Its life, by DynamoDB's tidying, is far from over: the item is still there.
    assert int(item["forget_at"]["N"]) > time.time() + store.remember / 2
    until(lambda: time.monotonic() > start + 5 + 2 * BOUND + 1, what="the end of the lease")

    assert elsewhere(TRY_ONCE, dynamodb, name) == "True"


@pytest.mark.parametrize("database", [PostgresServer], indirect=True)
def test_scenario_55_a_store_that_is_away_is_no_lost_lease(
    database: Server, impatient: Store, name: str
) -> None:
    """While the store is away the lease holds until its trust is over; another owner ends it at once."""
    events: list[Event] = []
    leases = Leases(impatient, Notify([events.append]))

    def kinds() -> list[Kind]:
        return [event.kind for event in events]

    away = leases.claim(Request(lease_key("x", name), name, "a", new_token(), ttl=9))
    assert isinstance(away, Lease)
    database.pause()
    try:
        until(lambda: Kind.STORE_ERROR in kinds(), 30, "a renewal that failed")
        assert Kind.LOST not in kinds() or not away.held
        trusted = away.held
    finally:
        database.resume()
    until(lambda: Kind.REGAINED in kinds() or away.expires_in > 6, 30, "a renewal that succeeds again")
    assert trusted or Kind.LOST in kinds()
    away.release()

    events.clear()
    stolen = leases.claim(Request(lease_key("y", name), name, "a", new_token(), ttl=3))
    assert isinstance(stolen, Lease)
    leases.store.evict(stolen.key)
    leases.store.claim(Claim(stolen.key, "b", 0, "another's token", 60_000))
    until(lambda: Kind.LOST in kinds(), 30, "the loss")
    assert not stolen.held
    stolen.release()


@pytest.mark.parametrize("database", [PostgresServer], indirect=True)
def test_scenario_57_a_transaction_pooler_may_stand_between(
    database: PostgresServer, name: str, tmp_path: Path
) -> None:
    """Through two server connections, recycled every second, ten clients count exactly; none is stuck."""
    with TransactionPooler(database, connections=2) as pooler:
        crowd = Crowd(pooler.url, name, str(tmp_path / "counter"), processes=2, threads=5, each=20, ttl=5)
        counts = run(crowd)

        assert Path(crowd.counter).read_text() == "200"
        assert sum(count.updates for count in counts) == 200
        with closing(open_store(pooler.url, timeout=10)) as store:
            look = store.peek(lease_key("singleflight", name))
        assert look is not None
        assert not look.record.held, "an orphan"


def test_scenario_59_time_zones_do_not_matter(database: Server, name: str, tmp_path: Path) -> None:
    """Workers in Seoul and Los Angeles exclude each other, and take over from each other's dead in time."""
    zones = [{"TZ": "Asia/Seoul"}, {"TZ": "America/Los_Angeles"}]
    crowd = Crowd(
        database.url, name, str(tmp_path / "counter"), each=5, ttl=2.0, suicide=True, environments=zones
    )
    start = time.time()
    counts = run(crowd)

    assert int(Path(crowd.counter).read_text()) == sum(count.updates for count in counts) == 54
    with closing(open_store(database.url, timeout=10)) as store:
        look = store.peek(lease_key("singleflight", name))
    assert look is not None
    assert start - 60 < look.record.started_ms / 1000 < time.time() + 60, "that is another zone's time"


def test_scenario_63_eight_processes_on_one_file_hear_of_no_locked_database(
    name: str, tmp_path: Path
) -> None:
    """Eight processes that claim, renew and release in one SQLite file count exactly, and none fails."""
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    SqlStore(url).set_up()
    crowd = Crowd(url, name, str(tmp_path / "counter"), processes=8, threads=1, each=60, ttl=1.0)
    counts = run(crowd)

    assert int(Path(crowd.counter).read_text()) == sum(count.updates for count in counts) == 480


def test_scenario_64_after_an_outage_the_next_call_runs(
    database: Server, impatient: Store, name: str
) -> None:
    """A database that was away for longer than a run's lease blocks nobody when it is back."""
    leases = Leases(impatient)
    held = leases.claim(Request(lease_key("x", name), name, "a", new_token(), ttl=2))
    assert isinstance(held, Lease)
    database.kill()
    try:
        until(lambda: not held.held, 30, "the end of the trust")
        with pytest.raises(StoreUnavailable):
            leases.claim(Request(held.key, name, "b", new_token(), ttl=2), anyway=True)
    finally:
        database.start()

    def answer() -> Lease | None:
        try:
            got = leases.claim(Request(held.key, name, "b", new_token(), ttl=2), anyway=True)
        except StoreUnavailable:
            return None
        return got if isinstance(got, Lease) else None

    held.release()  # its own renewal may have come first: then it holds again
    assert until(answer, 30, "the next run's lease").release()


def test_scenario_65_connections_are_not_shared_over_a_fork(
    database: Server, name: str, tmp_path: Path
) -> None:
    """A parent that has used its store forks eight children; all of them and the parent work on."""
    crowd = Crowd(database.url, name, str(tmp_path / "counter"), processes=8, threads=1, each=25)
    counts = run(crowd)

    assert int(Path(crowd.counter).read_text()) == sum(count.updates for count in counts) == 200
