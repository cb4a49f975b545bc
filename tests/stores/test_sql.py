"""What only the SQL store does: rows for people, and what databases and their connections do to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, event, func, select, text, update

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.lease import Busy, Granted, Holder, Outcome
from singleflight.stores import open_store
from singleflight.stores.base import Renewal, Renewed
from singleflight.stores.sql import SqlStore
from singleflight.stores.sql.engine import parse
from singleflight.stores.sql.setup import statements
from singleflight.stores.sql.tables import leases, runs, schema
from singleflight.testing.contract_base import claim, granted, ran, refused, release
from tests.support.databases import MariaServer, PostgresServer
from tests.support.proxy import FaultProxy, Mode
from tests.support.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy.engine import Connection

SERVERS = ("postgresql", "mariadb")
KINDS = (*SERVERS, "sqlite")


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The database that the test's parameter names."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"singleflight:shop.nightly_report:{{{uuid4().hex}}}"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    """A store in that database."""
    with opened(url) as store:
        yield store


@contextmanager
def opened(url: str, **options: Any) -> Iterator[SqlStore]:
    """Open a store and close it."""
    store = SqlStore(url, **{"timeout": 10, **options})
    try:
        yield store
    finally:
        store.close()


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection of the test's own."""
    engine = create_engine(parse(url), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def rows(url: str, key: str) -> list[dict[str, Any]]:
    """Return the rows about ended runs of a key."""
    with connected(url) as connection:
        found = connection.execute(select(runs).where(runs.c.lease_key == key).order_by(runs.c.ended))
        return [dict(row) for row in found.mappings()]


every_database = pytest.mark.parametrize("url", KINDS, indirect=True)
every_server = pytest.mark.parametrize("url", SERVERS, indirect=True)


@every_database
def test_an_ended_run_is_a_row(url: str, store: SqlStore, key: str) -> None:
    """A run that ended is a row that says when it was planned, started and ended, where, and how."""
    holder = Holder("shop.nightly_report", "worker-1", 4711)
    run = "nightly@2026-11-29T03:00:00+09:00"
    before = time.time()
    granted(store, key, run, holder=holder.encode())
    release(store, key, run, Outcome.FAILED)

    (row,) = rows(url, key)
    assert (row["run_id"], row["attempt"], row["outcome"]) == (run, 0, "failed")
    assert (row["task"], row["worker"]) == ("shop.nightly_report", "worker-1, pid 4711")
    assert row["planned"] == "2026-11-28T18:00:00.000Z"
    # The servers' sessions are in another zone than the tests.
    written = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(before - 60))
    latest = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() + 60))
    assert written <= row["started"] <= row["ended"] <= latest


@every_database
def test_an_end_is_written_once(url: str, store: SqlStore, key: str) -> None:
    """A second release adds no row, a retry's attempt has its own, and what comes back has none yet."""
    ran(store, key, "a", Outcome.RETRYING)
    granted(store, key, "a", 1)
    release(store, key, "a", Outcome.FINISHED, 1)
    release(store, key, "a", Outcome.FAILED, 1)
    ran(store, key, "b", Outcome.REQUEUED)

    assert [(row["attempt"], row["outcome"]) for row in rows(url, key)] == [(0, "retrying"), (1, "finished")]
    assert rows(url, key)[0]["planned"] is None


@every_database
def test_rows_whose_life_is_over_go_in_passing(
    url: str, store: SqlStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgotten leases and old rows about runs are removed by later releases, and nothing else is."""
    with opened(url, remember=0.001) as short:
        granted(short, f"{key}1", "a", ttl_ms=1)
    ran(store, f"{key}2", "a")
    monkeypatch.setattr("singleflight.stores.sql.store.TIDY_EVERY", 0)
    with opened(url, history=0.001) as forgetful:
        time.sleep(0.01)
        ran(forgetful, f"{key}3", "a")

    with connected(url) as connection:
        left = connection.execute(select(leases.c.lease_key).where(leases.c.lease_key.like(f"{key}%")))
        kept = connection.execute(select(func.count()).where(runs.c.lease_key == f"{key}2")).scalar_one()
        assert sorted(left.scalars()) == [f"{key}2", f"{key}3"]
    assert kept == 0


@every_database
def test_a_window_is_kept_to_the_millisecond(store: SqlStore, key: str) -> None:
    """Granted; refused within a thousand milliseconds; granted when one more has passed."""
    start = ran(store, key, "a", window_ms=1000).started_ms
    refusals, answer = 0, claim(store, key, "b", window_ms=1000)
    deadline = time.monotonic() + 30
    while isinstance(answer, Busy) and time.monotonic() < deadline:
        refusals += 1
        time.sleep(answer.retry_after)
        answer = claim(store, key, "b", window_ms=1000)

    assert isinstance(answer, Granted)
    assert answer.started_ms > start + 1000
    assert refusals >= 1


@every_database
def test_a_refusal_writes_nothing(url: str, store: SqlStore, key: str) -> None:
    """Somebody who is refused and does not wait leaves the row untouched."""
    granted(store, key, "a")
    revision = select(leases.c.revision).where(leases.c.lease_key == key)
    with connected(url) as connection:
        before = connection.execute(revision).scalar_one()
        refused(store, key, "b")

        assert connection.execute(revision).scalar_one() == before


@every_database
def test_keys_differ_by_case(store: SqlStore, key: str) -> None:
    """Two keys that differ only by upper and lower case are two keys."""
    granted(store, f"{key}a", "a")

    granted(store, f"{key}A", "a")


@every_server
def test_a_callers_open_transaction_has_nothing_to_do_with_it(url: str, store: SqlStore, key: str) -> None:
    """A lease taken while the caller has a transaction open is there at once, and after its rollback too."""
    engine = create_engine(parse(url))
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER)"))
        connection.commit()
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        granted(store, key, "a")
        with opened(url) as elsewhere:
            refused(elsewhere, key, "b")
        connection.rollback()
    engine.dispose()

    refused(store, key, "b")


def test_a_serializable_database_only_makes_it_try_again(postgresql: PostgresServer, key: str) -> None:
    """Where each statement may fail to serialize, many at once still get one grant and no error."""
    option = "?options=-c%20default_transaction_isolation%3Dserializable"
    with opened(postgresql.url + option) as store:
        answers: list[Granted | Busy] = []

        def work(number: int) -> None:
            answers.extend(claim(store, f"{key}{turn}", f"run-{number}") for turn in range(5))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(answers) == 40
    assert sum(isinstance(answer, Granted) for answer in answers) == 5


def test_a_lock_that_others_keep_is_not_waited_for(postgresql: PostgresServer, key: str) -> None:
    """While somebody has the row locked, a claim is unavailable in time, and the server does not wait on."""
    engine = create_engine(parse(postgresql.url))
    with opened(postgresql.url, timeout=0.5) as store, engine.connect() as connection:
        ran(store, key, "a")
        connection.execute(select(leases).where(leases.c.lease_key == key).with_for_update())
        with pytest.raises(StoreUnavailable):
            claim(store, key, "b")
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        deadline = time.monotonic() + 10
        while connection.execute(waiting).scalar_one() and time.monotonic() < deadline:
            time.sleep(0.05)

        assert connection.execute(waiting).scalar_one() == 0
    engine.dispose()


@pytest.mark.parametrize("kind", [PostgresServer, MariaServer])
def test_a_silent_server_is_unavailable_in_time(kind: type[PostgresServer | MariaServer], key: str) -> None:
    """A server that takes requests and never answers costs the timeout, and is used again afterwards."""
    with kind() as server:
        SqlStore(server.url).set_up()
        with opened(server.url, timeout=0.5) as store:
            granted(store, key, "a")
            server.pause()
            start = time.monotonic()
            with pytest.raises(StoreUnavailable):
                claim(store, key, "b")
            took = time.monotonic() - start
            server.resume()

            assert took < 30, "it waited for ever"
            assert took >= 0.4, "it did not wait for the server at all"
        with opened(server.url) as store:
            refused(store, key, "b")
            server.restart()
            assert refused(store, key, "b").run_id == "a", "a broken connection is replaced unseen"


CUT_OFF = """
import sys
from singleflight.errors import StoreUnavailable
from singleflight.stores import open_store
from singleflight.testing.contract_base import claim, granted, release
store, key = open_store(sys.argv[1], timeout=0.5), sys.argv[2]
granted(store, key, "a")
print("granted", flush=True)
input()
for ask in (lambda: claim(store, key, "b"), lambda: release(store, key, "a")):
    try:
        ask()
    except Exception as error:
        print(type(error).__name__, flush=True)
"""
"""Asks a database that is silent from the first line of input on. A process of its own, because pg8000 leaves
its sockets open then."""


@pytest.mark.parametrize("driver", ["psycopg", "pg8000"])
def test_every_driver_of_postgresql_says_in_our_words_that_nobody_answers(driver: str, key: str) -> None:
    """What a driver lets through of its socket is an outage too, for a release as for a claim."""
    with PostgresServer() as server:
        SqlStore(server.url).set_up()
        url = server.url.replace("postgresql://", f"postgresql+{driver}://")
        command = [sys.executable, "-W", "ignore", "-c", CUT_OFF, url, key]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
            assert asking.stdout is not None
            assert asking.stdout.readline() == "granted\n"
            server.pause()
            said, _ = asking.communicate("\n", timeout=60)
            server.resume()

    assert said.split() == ["StoreUnavailable", "StoreUnavailable"]


def test_what_no_store_can_keep_is_refused_for_good(sqlite_url: str, key: str) -> None:
    """A run's id that is no text is a permanent error, not an outage, and not the driver's own error."""
    with opened(sqlite_url) as store, pytest.raises(ConfigurationError, match="cannot keep"):
        claim(store, key, "a\ud800b")


@pytest.mark.parametrize("server", SERVERS)
def test_a_grant_whose_answer_was_lost_is_recognised(
    server: str, key: str, request: pytest.FixtureRequest
) -> None:
    """A claim that was granted and never heard so gets the same grant when it asks again."""
    running = request.getfixturevalue(server)
    with FaultProxy(running.port) as proxy:
        url = running.url.replace(str(running.port), str(proxy.port))
        with opened(url, timeout=10) as store, opened(running.url) as witness:
            ran(store, f"{key}1", "warm up")
            proxy.delay = 0.5
            answers: list[Granted] = []
            asking = threading.Thread(target=lambda: answers.append(granted(store, key, "a")))
            asking.start()
            deadline = time.monotonic() + 20
            while witness.peek(key) is None and time.monotonic() < deadline:
                time.sleep(0.02)
            proxy.mode = Mode.DROP_REPLIES  # the write has arrived, and its answer is half a second late
            time.sleep(1)
            proxy.reset()
            proxy.mode, proxy.delay = Mode.PASS, 0
            asking.join(20)

            (answer,) = answers
            assert claim(store, key, "a") == answer


def test_an_interrupted_request_does_not_leave_its_reply_behind(postgresql: PostgresServer, key: str) -> None:
    """A time limit that strikes between request and reply never hands that reply to the next request."""

    class TimeLimit(Exception):
        pass

    def strike(*_: object) -> None:
        raise TimeLimit

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, strike)
    with FaultProxy(postgresql.port) as proxy:
        url = postgresql.url.replace(str(postgresql.port), str(proxy.port))
        with opened(url, timeout=20) as store:
            granted(store, key, "a")
            proxy.mode = Mode.HOLD
            timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1))
            timer.start()
            try:
                with pytest.raises(TimeLimit):
                    release(store, key, "a")
            finally:
                timer.join()
                signal.signal(signal.SIGUSR1, before)
            proxy.mode = Mode.PASS

            assert [granted(store, f"{key}{number}", "b").took_over for number in range(5)] == [False] * 5


@pytest.mark.parametrize("server", SERVERS)
def test_missing_tables_are_named_with_their_remedy(server: str, request: pytest.FixtureRequest) -> None:
    """A database without our tables is a permanent fault that names the command, and no password."""
    running = request.getfixturevalue(server)
    with connected(running.url) as connection:
        connection.execute(text("CREATE DATABASE empty"))
    url = running.url.rpartition("/")[0].replace("@", ":hunter2@") + "/empty"
    if server == "mariadb":
        url = url.replace(":hunter2", "")  # here a needless password is refused

    with opened(url) as store, pytest.raises(ConfigurationError, match="`singleflight init '") as caught:
        claim(store, "key", "a")
    assert "hunter2" not in str(caught.value)
    SqlStore(url).set_up()
    SqlStore(url).set_up()
    with opened(url) as store:
        granted(store, "key", "a")


def test_a_file_without_tables_is_named_with_its_remedy(tmp_path: Path) -> None:
    """A SQLite file without our tables is a permanent fault too."""
    with opened(f"sqlite:///{tmp_path}/new.db") as store, pytest.raises(ConfigurationError, match="has no"):
        claim(store, "key", "a")


def test_a_file_that_cannot_be_made_is_permanent(tmp_path: Path) -> None:
    """A SQLite file in a folder that is not there is a permanent fault."""
    with (
        opened(f"sqlite:///{tmp_path}/none/new.db") as store,
        pytest.raises(ConfigurationError, match="unable to open"),
    ):
        claim(store, "key", "a")


@pytest.mark.parametrize(
    ("server", "who", "words"),
    [
        ("postgresql", "stranger:hunter2@", "does not exist"),
        ("mariadb", "root:hunter2@", "Access denied"),
    ],
)
def test_a_refused_user_is_permanent_and_no_password_is_shown(
    server: str, who: str, words: str, request: pytest.FixtureRequest
) -> None:
    """A user whom the database refuses is a permanent fault whose text has no password."""
    running = request.getfixturevalue(server)
    url = running.url.replace(f"{parse(running.url).username}@", who)
    with opened(url) as store, pytest.raises(ConfigurationError, match=words) as caught:
        claim(store, "key", "a")

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_no_server_is_store_unavailable(scheme: str) -> None:
    """A server that is not there is unavailable; the text names the address, without the password."""
    port = free_port()
    with (
        opened(f"{scheme}://shop:hunter2@127.0.0.1:{port}/shop") as store,
        pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}/shop") as caught,
    ):
        claim(store, "key", "a")

    assert "hunter2" not in str(caught.value)


def test_other_tables_and_other_records_are_no_duplicates(tmp_path: Path) -> None:
    """Tables or records of another version are permanent faults that name both versions."""
    url = f"sqlite:///{tmp_path}/leases.db"
    SqlStore(url).set_up()
    with opened(url) as store, connected(url) as connection:
        granted(store, "key", "a")
        connection.execute(update(leases).values(v=99))
        with pytest.raises(ConfigurationError, match=r"record version 99, this singleflight reads 2"):
            claim(store, "key", "b")
    with opened(url) as store, connected(url) as connection:
        connection.execute(update(schema).values(version=7))
        with pytest.raises(ConfigurationError, match=r"tables of version 7, this singleflight needs 2"):
            claim(store, "key", "b")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("postgresql+asyncpg://h/d", r"no store for the scheme 'postgresql\+asyncpg'"),
        ("postgresql://h:port/d", "cannot be read"),
    ],
)
def test_a_url_that_cannot_work_is_refused_when_it_is_opened(url: str, words: str) -> None:
    """A database that no other process can see, a driver that cannot be used, or a misspelt URL."""
    with pytest.raises(ConfigurationError, match=words):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgres://h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg"),
        ("mysql://h/d", "mysql+pymysql"),
        ("mariadb+pymysql://h/d", "mariadb+pymysql"),
        ("sqlite:///file.db", "sqlite+pysqlite"),
    ],
)
def test_every_scheme_opens_a_store(url: str, driver: str) -> None:
    """URLs as SQLAlchemy's users write them open a SQL store, with the named driver or an installed one."""
    store = open_store(url)

    assert isinstance(store, SqlStore)
    assert store._url.drivername == driver


@pytest.mark.parametrize(
    ("package", "database"), [("sqlalchemy", "postgresql"), ("psycopg", "postgresql"), ("pymysql", "mysql")]
)
def test_a_missing_package_is_named_with_its_remedy(package: str, database: str) -> None:
    """Without SQLAlchemy, or without any driver, the error says what to install; the library imports."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "hidden = {name for name, module in sys.modules.items() if module is None}\n"
        "hidden |= {'psycopg2', 'pg8000', 'MySQLdb'}\n"
        "util.find_spec = lambda name: None if name in hidden else found(name)\n"
        "import singleflight\n"
        "from singleflight.stores import open_store\n"
        f"try: open_store('{database}://localhost/shop')\n"
        "except singleflight.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert 'pip install "singleflight-tasks[sql]"' in done.stdout, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_statements_that_are_printed_are_those_that_work(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Tables made by hand from the printed statements serve as well."""
    url = str(request.getfixturevalue(f"{kind}_url"))
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/by-hand.db"
    else:
        with connected(url) as connection:
            connection.execute(text("CREATE DATABASE by_hand"))
        url = url.rpartition("/")[0] + "/by_hand"
    with connected(url) as connection:
        for statement in statements(parse(url)):
            connection.execute(text(statement))

    with opened(url) as store:
        ran(store, "key", "a")


@pytest.mark.parametrize("kind", KINDS)
def test_many_renewals_are_read_by_one_statement(kind: str, request: pytest.FixtureRequest) -> None:
    """Twenty renewals are one statement that reads and twenty that write; a strange row costs only itself."""
    store = SqlStore(request.getfixturevalue(f"{kind}_url"), timeout=20)
    keys = [f"singleflight:many:{{{uuid4().hex}}}" for _ in range(20)]
    fences = {key: granted(store, key, "a").fence for key in keys}
    renewals = [Renewal(key, "a", 0, "token-a-0", fence, 60_000) for key, fence in fences.items()]
    said: list[str] = []
    engine = store._engines[os.getpid()]
    event.listen(engine, "before_cursor_execute", lambda *given: said.append(given[2].split()[0]))

    assert store.renew(renewals) == [Renewed.RENEWED] * 20
    assert [said.count(verb) for verb in ("SELECT", "UPDATE", "INSERT")] == [1, 20, 0]
    with engine.connect() as connection:
        connection.execute(update(leases).where(leases.c.lease_key == keys[3]).values(v=99))
    answers = store.renew(renewals)
    store.close()
    assert isinstance(answers.pop(3), ConfigurationError)
    assert answers == [Renewed.RENEWED] * 19
