"""The line in databases: what it costs, what a killed process leaves, and who sweeps at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import delete, event, func, select, text, update

from singleflight.errors import ConfigurationError
from singleflight.stores.lining import Kind
from singleflight.stores.sql import SqlStore
from singleflight.stores.sql.tables import leases, moments, schema, waiting
from singleflight.testing import FakeClock
from singleflight.testing.contract_line_base import At
from tests.stores.clocked import ClockedSqlStore
from tests.stores.test_sql import KINDS, connected, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The database that the test's parameter names."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"singleflight:shop.nightly_report:{{{uuid4().hex}}}"


@pytest.fixture
def at(url: str, key: str) -> Iterator[At]:
    """A process that can publish for one home, at one key in that database."""
    with opened(url) as store:
        yield At(store, key, f"singleflight:home:{key}")


every_database = pytest.mark.parametrize("url", KINDS, indirect=True)


@contextmanager
def statements_of(store: SqlStore) -> Iterator[list[str]]:
    """Note the first word of each statement, of each that is sent at once with others too."""
    said: list[str] = []
    engine = store._engines[os.getpid()]

    def note(*given: object) -> None:
        said.append(str(given[2]).split()[0])

    event.listen(engine, "before_cursor_execute", note)
    yield said
    event.remove(engine, "before_cursor_execute", note)


@every_database
def test_where_nobody_waits_nothing_is_asked_of_the_line(at: At) -> None:
    """Claim and release are the five statements that they are without a line."""
    assert isinstance(at.store, SqlStore)
    at.granted("warm up")
    at.release("warm up")
    with statements_of(at.store) as said:
        at.granted("a")
        at.release("a")

    assert said == ["SELECT", "UPDATE", "SELECT", "UPDATE", "INSERT"]


DYING = """
import json, os, signal, sys
from sqlalchemy import Engine, event
from singleflight.stores.sql import SqlStore
from singleflight.testing.contract_line_base import At
url, key, numbers = sys.argv[1:4]
for number in json.loads(numbers):
    at = At(SqlStore(url, timeout=20), f"{key}{number}", f"singleflight:home:{key}")
    at.granted("a")
    for run in ("b", "c"):
        at.park(run)
    child = os.fork()
    if not child:
        said = []
        def strike(*given):
            said.append(given[2])
            if len(said) > number:
                os.kill(os.getpid(), signal.SIGKILL)
        at.store = SqlStore(url, timeout=20)
        at.store.line_of(key)
        event.listen(Engine, "before_cursor_execute", strike)
        at.release("a")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    record = at.store.peek(at.key).record
    before = [record.held, *(one.standing for one in at.store.line_of(at.key).shown)]
    at.release("a")
    after = [at.store.peek(at.key).record.held, *(one.standing for one in at.store.line_of(at.key).shown)]
    print(json.dumps([status != 0, before, after]), flush=True)
"""
"""Has a child release a key and be killed before one of its statements, and says what others find."""

UNTOUCHED, DONE = [True, "ready", "ready"], [False, "called", "ready"]


def die(url: str, key: str, numbers: list[int]) -> list[list[object]]:
    """Say for each number of a statement whether the child came so far, what it left, and what came then."""
    command = [sys.executable, "-W", "ignore", "-c", DYING, url, key, json.dumps(numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(120)
@every_database
def test_a_process_killed_between_statements_leaves_all_or_nothing(url: str, key: str) -> None:
    """Wherever it dies, the lease and the line say the same, and others go on at once."""
    found = die(url, key, list(range(20)))

    assert [each[2] for each in found] == [DONE] * 20
    left = [each[1] for each in found if each[0]]
    assert left == [UNTOUCHED] * left.count(UNTOUCHED) + [DONE] * left.count(DONE)
    assert left.count(UNTOUCHED) >= 4, "it was not killed within the transaction"
    assert left.count(DONE) >= 1, "it was not killed before the row about the run's end"


SWEEPING = """
import sys, time
from singleflight.stores.sql import SqlStore
store, home = SqlStore(sys.argv[1], timeout=20), sys.argv[2]
store.sweep((home,))
print("ready", flush=True)
input()
empty = 0
while empty < 5:
    called = store.sweep((home,)).called
    empty = 0 if called else empty + 1
    for one in called:
        print(one.key, flush=True)
        store.sent(one.key, one.run_id, one.call_no)
    time.sleep(0.05 if empty else 0)
"""


@pytest.mark.timeout(120)
@every_database
def test_several_may_sweep_at_once(url: str, at: At) -> None:
    """Of forty keys whose leases have lapsed, each is called once, whoever comes first."""
    keys = [f"{at.key}{number}" for number in range(40)]
    sweepers = []
    for _ in range(2):
        command = [sys.executable, "-W", "ignore", "-c", SWEEPING, url, at.home]
        sweepers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert [one.stdout and one.stdout.readline() for one in sweepers] == ["ready\n"] * 2
    with opened(url) as store:
        for each in keys:
            one_key = At(store, each, at.home)
            one_key.granted("a", ttl_ms=20_000)
            one_key.park("b")
            store.evict(each)
    for one in sweepers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    called = [one.communicate(timeout=100)[0].split() for one in sweepers]

    assert sorted(called[0] + called[1]) == sorted(keys)


def test_a_crowd_of_dead_listeners_hides_nobody(sqlite_url: str, key: str) -> None:
    """More than one look reads stand at the head, and their life is over: the next one is called."""
    clock = FakeClock()
    store = ClockedSqlStore(sqlite_url, clock=clock, timeout=10)
    at = At(store, key, f"singleflight:home:{key}")
    at.granted("a", ttl_ms=3_600_000)
    for number in range(100):
        at.park(f"l{number}", kind=Kind.LISTENING, life_ms=3000 if number else 2000)
    at.park("b")
    clock.advance(2.5)
    at.release("a")
    clock.advance(3)
    called = [one.run_id for _ in range(10) for one in at.sweep()]
    left = at.waiting
    store.close()

    assert called == ["b"]
    assert left == ["b"]


def test_dead_listeners_go_with_their_record(
    sqlite_url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody comes back to a key whose listeners died: its rows are removed in passing."""
    clock = FakeClock()
    store = ClockedSqlStore(sqlite_url, clock=clock, timeout=10)
    at, elsewhere = At(store, key, "singleflight:home:none"), At(store, f"{key}2", "singleflight:home:none")
    at.granted("a")
    at.park("l", kind=Kind.LISTENING, life_ms=3000)
    clock.advance(3 * store.remember)
    monkeypatch.setattr("singleflight.stores.sql.store.TIDY_EVERY", 0)
    elsewhere.granted("b")
    elsewhere.release("b")
    store.close()

    with connected(sqlite_url) as connection:
        left = select(func.count()).select_from(waiting).where(waiting.c.lease_key == key)
        assert connection.execute(left).scalar_one() == 0


def test_who_parks_while_a_sweep_finds_nothing_is_not_forgotten(sqlite_url: str, key: str) -> None:
    """The record was lost, a sweep sees that nobody waits, and somebody parks before it has said so."""
    clock = FakeClock()
    store, other = (ClockedSqlStore(sqlite_url, clock=clock, timeout=10) for _ in range(2))
    home = f"singleflight:home:{key}"
    at, elsewhere = At(store, key, home), At(other, key, home)
    at.granted("a", ttl_ms=1000)
    at.park("b")
    with connected(sqlite_url) as connection:
        for table in (leases, waiting):
            connection.execute(delete(table).where(table.c.lease_key == key))
    clock.advance(2)
    came = []

    def park(*given: object) -> None:
        if not came and str(given[2]).startswith("BEGIN"):
            came.append(elsewhere.granted("c"))
            elsewhere.park("d")

    engine = store._engines[os.getpid()]
    event.listen(engine, "before_cursor_execute", park)
    swept = at.sweep()
    event.remove(engine, "before_cursor_execute", park)
    with connected(sqlite_url) as connection:
        noted = select(func.count()).select_from(moments).where(moments.c.lease_key == key)
        found = connection.execute(noted).scalar_one()
    store.close()
    other.close()

    assert (swept, len(came), found) == ([], 1, 1)


def test_tables_of_the_version_before_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    """Whoever uses or makes them is told what to type, and that makes tables that work."""
    url = f"sqlite:///{tmp_path}/leases.db"
    SqlStore(url).set_up()
    with connected(url) as connection:
        connection.execute(update(schema).values(version=1))
    with opened(url) as store:
        for use in (lambda: store.peek("key"), store.set_up):
            with pytest.raises(
                ConfigurationError, match=r"version 1, .* needs 2: .*DROP TABLE .* init"
            ) as said:
                use()
    with connected(url) as connection:
        for statement in str(said.value).split("`")[1:4:2]:
            assert statement.startswith("DROP TABLE")
            connection.execute(text(statement))
    with opened(url) as store:
        store.set_up()
        assert store.peek("key") is None
