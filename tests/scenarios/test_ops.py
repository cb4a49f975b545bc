"""Scenarios 165 to 175: what operators see, free, and are warned of."""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery

from singleflight import Busy, Conflict, Event, Kind, Lease, Outcome, Singleton, try_lease
from singleflight.celery import install
from singleflight.celery.ticks import tick_key
from singleflight.cli.apps import load
from singleflight.cli.doctor.celery_beat import of_beat, scheduler_of
from singleflight.cli.doctor.findings import Level, of_store
from singleflight.cli.output import Failure
from singleflight.events import Notify, short_key
from singleflight.key_rules import KeyRule
from singleflight.keys import lease_key
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.metrics import prometheus
from singleflight.policy import resolve
from singleflight.stores import open_store
from singleflight.stores.base import Claim
from singleflight.stores.memory import MemoryStore
from singleflight.tasks.publishing import Place, Slots
from tests.support.bodylog import BodyLog
from tests.support.child import MARK, Child
from tests.support.databases import PostgresServer
from tests.support.dynamo import CREDENTIALS, REGION, Ministack
from tests.support.groups import ValkeyCluster
from tests.support.servers import ValkeyServer
from tests.support.waiting import until
from tests.support.wrapper import SINGLEFLIGHT, WORKS, Program, needed, with_log
from tests.support.wrapper import logging as writing

if TYPE_CHECKING:
    import logging
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A running server that no test spoils."""
    with ValkeyServer("--repl-diskless-sync-delay", "0") as running:  # its replica need not wait
        yield running


def operator(server: ValkeyServer | ValkeyCluster, prefix: str = "singleflight", **env: str) -> Program:
    """Return the command line of somebody who looks after a server."""
    more = {"SINGLEFLIGHT_URL": server.url, "SINGLEFLIGHT_PREFIX": prefix, **env}
    return Program((str(SINGLEFLIGHT),), server.url, {**os.environ, **more})


def findings(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Read what `doctor --json` has found."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def said(done: subprocess.CompletedProcess[str], level: str) -> str:
    """Return all that `doctor --json` said of one level."""
    return "\n".join(f"{one['what']} -> {one['remedy']}" for one in findings(done) if one["level"] == level)


def test_scenario_165_nothing_at_start_frees_a_live_lease(server: ValkeyServer, tmp_path: Path) -> None:
    """Another wrapper, `ls`, `doctor` and `init` come and go: the lease of a live run is untouched."""
    program, log = with_log(server, tmp_path), BodyLog(tmp_path / "bodies.log")
    store, key = open_store(server.url), lease_key(tmp_path.name, "lk")
    with program.started("LEASE", *writing(WORKS), "one", "60"):
        until(log.runs)
        before = store.peek(key)
        operators = operator(server, tmp_path.name)
        for command in (["ls"], ["doctor"], ["init"], ["run", "-n", "lk", "true"], ["run", "other", "true"]):
            operators.run(*command)
        after = store.peek(key)
    store.close()

    assert before is not None
    assert after is not None
    assert (after.record.token, after.record.held) == (before.record.token, True)
    assert len(log.runs()) == 1


def test_scenario_167_a_stuck_lease_is_seen_and_freed(server: ValkeyServer, tmp_path: Path) -> None:
    """Task, host, pid, run, since and time left are shown; freed by force, the holder reports it lost."""
    program, log = with_log(server, tmp_path), BodyLog(tmp_path / "bodies.log")
    operators = operator(server, tmp_path.name)
    with program.started("--ttl", "1.5", "LEASE", *writing(WORKS), "one", "60") as holder:
        until(log.runs)
        shown = json.loads(operators.run("ls", "--json").stdout)
        freed = operators.run("evict", "--yes", str(shown["short_key"]))
        _, complaints = holder.communicate(timeout=30)
        after = json.loads(operators.run("show", "--json", "lk").stdout)

    assert (shown["task"], shown["pid"], shown["state"]) == ("lk", holder.pid, "running")
    assert shown["run_id"]
    assert shown["started_ago"] >= 0
    assert 0 < shown["time_left"] <= 1.5
    assert "evicted by" in freed.stderr
    assert holder.returncode == 112
    assert "could not be trusted" in complaints
    assert after["state"] == "free"


def test_scenario_170_a_new_parameter_makes_no_new_key_where_by_names_the_old_ones() -> None:
    """Old and new code agree on the key of a resource as long as `by` and the task's name stay."""

    def old(account_id: int) -> None: ...
    def new(account_id: int, reason: str = "") -> None: ...
    def renamed(account: int) -> None: ...

    def rule(call: Any, by: Any) -> KeyRule:
        return KeyRule(prefix="p", task="shop.recalculate", signature=inspect.signature(call), by=by)

    assert rule(old, ("account_id",)).key((7,), {}) == rule(new, ("account_id",)).key((7, "why"), {})
    # A renamed parameter is another key, unless a callable says what it stands for.
    assert rule(renamed, ("account",)).key((7,), {}) != rule(old, ("account_id",)).key((7,), {})
    as_value = (rule(old, lambda account_id: account_id), rule(renamed, lambda account: account))
    assert as_value[0].key((7,), {}) == as_value[1].key((7,), {})


def test_scenario_171_two_environments_are_apart_by_prefix(server: ValkeyServer) -> None:
    """With a prefix each, staging and production neither meet nor see each other; without, they are one."""
    production = try_lease(server.url, "nightly", prefix="production")
    staging = try_lease(server.url, "nightly", prefix="staging")
    same = try_lease(server.url, "nightly", prefix="production")
    shown = operator(server, "staging").run("ls", "--json").stdout.splitlines()
    for lease in (production, staging):
        assert isinstance(lease, Lease)
        lease.release()

    assert isinstance(same, Busy)
    assert [json.loads(line)["key"] for line in shown] == [lease_key("staging", "nightly")]


TOLD = {
    Kind.SKIPPED: ("INFO", "running"),
    Kind.DEFERRED: ("INFO", "running"),
    Kind.REFUSED: ("INFO", "running"),
    Kind.DROPPED: ("INFO", "finished"),
    Kind.GAVE_UP: ("WARNING", "running"),
}
"""What becomes of a refused claim: at which level it is logged, and which reason is counted."""


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[list[Event]]:
    """What a listener is told in this test; the log is read besides."""
    with caplog.at_level("DEBUG", logger="singleflight"):
        yield []


def counted(events: list[Event]) -> dict[tuple[str, str, str], int]:
    """Count events as Prometheus does, by event, task and reason."""
    needed("prometheus_client", "prometheus-client")
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    listen = prometheus(registry)
    for event in events:
        listen(event)
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {
        (sample.labels["event"], sample.labels["task"], sample.labels["reason"]): int(sample.value)
        for sample in samples
        if sample.name.endswith("events_total")
    }


def logged(caplog: pytest.LogCaptureFixture, kind: Kind) -> logging.LogRecord:
    """Return the only log record of events of a kind."""
    (record,) = [one for one in caplog.records if one.__dict__["singleflight"].kind is kind]
    return record


@pytest.mark.parametrize("kind", TOLD)
def test_scenario_172_what_becomes_of_a_refused_run_is_seen(
    kind: Kind, heard: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Log record, event and counter have task, short key, reason, holder and age; normal skips are INFO."""
    level, reason = TOLD[kind]
    key = lease_key("skips", "shop.nightly")
    leases = Leases(MemoryStore(), Notify([heard.append]))
    first, second = (Request(key, "shop.nightly", f"run-{n}", new_token()) for n in (1, 2))
    held = leases.claim(first)
    assert isinstance(held, Lease)
    if kind is Kind.DROPPED:
        held.release(Outcome.FINISHED)
        second = first._replace(token=new_token())
    refused = leases.claim(second)
    assert isinstance(refused, Busy)
    leases.tell(kind, second, refused, delay=3.0 if kind is Kind.DEFERRED else None)
    held.release(Outcome.FINISHED)
    (event,) = [one for one in heard if one.kind is kind]
    record = logged(caplog, kind)

    assert (event.task, event.key, event.reason) == ("shop.nightly", short_key(key), reason)
    # Nobody holds the key of a run that has ended.
    assert event.holder == (None if kind is Kind.DROPPED else held.holder)
    assert (event.age is None) == (kind is Kind.DROPPED)
    assert record.levelname == level
    who = () if kind is Kind.DROPPED else (str(held.holder), f"pid {os.getpid()}")
    for part in ("shop.nightly", short_key(key), reason, *who):
        assert part in record.getMessage()
    assert counted(heard)[kind, "shop.nightly", reason] == 1


@pytest.mark.parametrize(("on_conflict", "kind"), [("skip", Kind.SKIPPED), ("raise", Kind.REFUSED)])
def test_scenario_172_what_is_not_sent_is_seen(
    on_conflict: Any, kind: Kind, heard: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """A publisher whose message is not sent because of one that runs is told who runs, and since when."""
    key = lease_key("skips", "shop.nightly")
    store, notify = MemoryStore(), Notify([heard.append])
    held = Leases(store).claim(Request(key, "shop.nightly", "run-1", new_token()))
    assert isinstance(held, Lease)
    policy = resolve(Singleton(at_most_one="waiting_or_running", on_conflict=on_conflict))
    place = Place(Slots(store, notify), key, "shop.nightly", policy)
    with suppress(Conflict):
        place.in_the_way()
    held.release()
    (event,) = heard
    record = logged(caplog, kind)

    assert (event.kind, event.task, event.key) == (kind, "shop.nightly", short_key(key))
    assert (event.reason, event.run_id, event.holder) == ("not sent: running", "run-1", held.holder)
    assert event.age is not None
    assert record.levelname == "INFO"
    assert counted(heard) == {(kind, "shop.nightly", "running"): 1}


def test_scenario_172_a_lost_lease_and_a_take_over_are_seen(
    heard: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Both are warnings: whoever was evicted says so with its age, whoever follows a dead run as well."""
    key = lease_key("skips", "shop.nightly")
    clock = [time.time()]
    store = MemoryStore(clock=lambda: clock[0])
    leases = Leases(store, Notify([heard.append]))
    store.claim(Claim(key, "run-1", 0, new_token(), ttl_ms=1000))  # nobody renews it: its process is dead
    clock[0] += 2
    held = leases.claim(Request(key, "shop.nightly", "run-2", new_token()))
    assert isinstance(held, Lease)
    store.evict(key)
    held._keeper.renew_now(held)
    held.release()
    until(lambda: {Kind.LOST, Kind.TOOK_OVER} <= {one.kind for one in heard}, what="both to be told")
    lost, taken = ([one for one in heard if one.kind is kind] for kind in (Kind.LOST, Kind.TOOK_OVER))

    assert [(one.task, one.key, one.run_id) for one in lost + taken] == [
        ("shop.nightly", short_key(key), "run-2")
    ] * 2
    assert lost[0].age is not None
    assert "evicted" in lost[0].reason
    assert {logged(caplog, kind).levelname for kind in (Kind.LOST, Kind.TOOK_OVER)} == {"WARNING"}
    assert counted(heard)[Kind.LOST, "shop.nightly", ""] == 1
    assert counted(heard)[Kind.TOOK_OVER, "shop.nightly", ""] == 1


def test_scenario_172_every_skip_is_seen(server: ValkeyServer) -> None:
    """The store knows how many were refused, why and when the last one was: `show` tells, long afterwards."""
    held = try_lease(server.url, "shop.nightly", prefix="skips")
    assert isinstance(held, Lease)
    refused = [try_lease(server.url, "shop.nightly", prefix="skips") for _ in range(3)]
    held.release()
    shown = json.loads(operator(server, "skips").run("show", "--json", "shop.nightly").stdout)

    assert [type(one) for one in refused] == [Busy] * 3
    assert (shown["refused"], shown["refused_reason"]) == (3, "running")
    assert shown["refused_ago"] >= 0


def test_scenario_175_a_healthy_server_has_no_errors(server: ValkeyServer) -> None:
    """Nothing is cried wolf about, and doctor's own key is gone soon."""
    done = operator(server, "doctor").run("doctor", "--json")
    store = open_store(server.url)
    until(lambda: not list(store.scan("doctor")))
    store.close()

    assert done.returncode == 0
    assert said(done, "error") == ""


def test_scenario_175_missing_persistence_is_a_warning(server: ValkeyServer) -> None:
    """A server that writes nothing to disk is named, with its remedy, and is no error."""
    done = operator(server).run("doctor", "--json")

    assert "no persistence" in said(done, "warning")
    assert "appendonly yes" in said(done, "warning")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_scenario_175_an_evicting_policy_is_an_error(policy: str) -> None:
    """A server that may evict keys, those with an expiry too, is named with its remedy."""
    with ValkeyServer("--maxmemory", "50mb", "--maxmemory-policy", policy) as server:
        done = operator(server).run("doctor", "--json")

    assert done.returncode == 1
    assert f"maxmemory-policy is {policy}" in said(done, "error")
    assert "noeviction" in said(done, "error")


def test_scenario_175_every_node_of_a_cluster_is_looked_at() -> None:
    """A node that differs from the others is named; what all have in common is said once."""
    with ValkeyCluster() as cluster:
        cluster.client(2).config_set("maxmemory", "50mb")
        cluster.client(2).config_set("maxmemory-policy", "allkeys-lru")
        done = operator(cluster).run("doctor", "--json")

    assert done.returncode == 1
    assert said(done, "error").startswith(
        f"127.0.0.1:{cluster.nodes[2].port}: maxmemory-policy is allkeys-lru"
    )
    assert said(done, "warning").count("no persistence") == 1


def test_scenario_175_a_replicas_address_is_an_error(server: ValkeyServer) -> None:
    """The primary's address is part of the remedy; the replica refuses writes besides."""
    with ValkeyServer("--replicaof", "127.0.0.1", str(server.port)) as replica:
        with redis.Redis.from_url(replica.url) as client:
            until(lambda: client.info("replication")["master_link_status"] == "up")
        done = operator(replica).run("doctor", "--json")
        primary = operator(server).run("doctor", "--json")

    assert done.returncode == 1
    assert "replica" in said(done, "error")
    assert primary.returncode == 0
    assert "a failover may forget the newest leases" in said(primary, "warning")


def test_scenario_175_missing_rights_are_named(server: ValkeyServer) -> None:
    """What leases need is an error with the rights to grant; what only doctor asks for is a warning."""
    least = "+evalsha +eval +time +get +set +pexpire +pttl +rpush +blpop +zadd +zrange +zrem"
    with redis.Redis.from_url(server.url) as client:
        users = {"least": least} | {
            word: least.replace(f" +{word}", "") for word in ("set", "blpop", "zrange")
        }
        for user, rights in users.items():
            client.execute_command(
                "ACL", "SETUSER", user, "on", ">sesame", "~singleflight:*", "-@all", *rights.split()
            )
    url = server.url.replace("://", "://{}:sesame@")
    without = {word: operator(server).run("doctor", "--json", url.format(word)) for word in list(users)[1:]}
    least_of_all = operator(server).run("doctor", "--json", url.format("least"))

    assert [few.returncode for few in without.values()] == [1, 1, 1]
    assert all(f"+{word}" in said(few, "error") for word, few in without.items())
    assert least_of_all.returncode == 0
    assert "+scan" in said(least_of_all, "warning")
    assert "+info" in said(least_of_all, "warning")
    assert "sesame" not in "".join(done.stdout + done.stderr for done in (*without.values(), least_of_all))


def test_scenario_175_the_printed_users_can_do_what_they_are_for(server: ValkeyServer) -> None:
    """`init --print` has the least rights: a worker can run, an operator can look, evict and use doctor."""
    printed = operator(server).run("init", "--print", server.url).stdout
    with redis.Redis.from_url(server.url) as client:
        for line in printed.splitlines():
            if line.startswith("ACL SETUSER"):
                client.execute_command(*line.replace("PASSWORD", "sesame").split())
    url = server.url.replace("://", "://{}:sesame@")
    worker, boss = (
        operator(server, SINGLEFLIGHT_URL=url.format(user)) for user in ("singleflight", "operator")
    )
    ran = worker.run("run", "--window", "1h", "job", "echo", "ran")
    listed = boss.run("ls", "--json")
    evicted = boss.run("evict", "--yes", "job")
    looked = boss.run("doctor", "--json")

    assert ran.stdout == "ran\n"
    assert lease_key("singleflight", "job") in [
        json.loads(line)["key"] for line in listed.stdout.splitlines()
    ]
    assert evicted.returncode == 0
    assert looked.returncode == 0
    assert "not allowed" not in looked.stdout
    assert "may not" not in looked.stdout
    assert "list keys" in said(
        operator(server, SINGLEFLIGHT_URL=url.format("singleflight")).run("doctor", "--json"), "warning"
    )


def test_scenario_175_the_printed_statements_are_all_that_a_database_needs() -> None:
    """On PostgreSQL, what `init --print` prints makes tables, lets workers run and operators look."""
    needed("psycopg", "psycopg")
    import psycopg

    with PostgresServer() as database:
        plain = database.url.replace("postgresql+psycopg", "postgresql")
        printed = operator_of_sql(database.url).run("init", "--print", "LEASE").stdout
        with psycopg.connect(plain, autocommit=True) as owner:
            owner.execute("CREATE ROLE operator LOGIN; CREATE ROLE singleflight LOGIN")
            owner.execute(printed)
        worker, boss = (
            database.url.replace("postgres@", f"{user}@") for user in ("singleflight", "operator")
        )
        ran = operator_of_sql(f"{worker}/job").run("run", "LEASE", "echo", "ran")
        listed = operator_of_sql(boss).run("ls", "--all", "--json", "LEASE")
        evicted = operator_of_sql(boss).run("evict", "--yes", "LEASE", "job")

    assert ran.stdout == "ran\n"
    assert json.loads(listed.stdout)["key"] == lease_key("singleflight", "job")
    assert evicted.returncode == 1
    assert "permission denied" in evicted.stderr


def operator_of_sql(url: str) -> Program:
    """Return the command line of somebody with a database's URL."""
    return Program((str(SINGLEFLIGHT),), url, dict(os.environ))


@pytest.mark.parametrize(("offset", "level"), [(30, Level.ERROR), (-30, Level.ERROR), (3, Level.WARNING)])
def test_scenario_175_clocks_that_differ_are_named(offset: float, level: Level) -> None:
    """Thirty seconds between a store's clock and this host's are an error, in either direction."""
    found = list(of_store(MemoryStore(clock=lambda: time.time() + offset), "singleflight"))

    assert [one.level for one in found if "clock is" in one.what] == [level]


def test_scenario_175_a_store_that_is_away_is_an_error() -> None:
    """One line says what does not answer; nothing hangs."""
    done = Program((str(SINGLEFLIGHT),), "", dict(os.environ)).run("doctor", "redis://127.0.0.1:1/0")

    assert done.returncode == 1
    assert [line[:8] for line in done.stdout.splitlines()] == ["error   ", "        "]
    assert "Connection refused" in done.stdout
    assert "-> check address, network and server" in done.stdout
    assert done.stderr == ""


def test_scenario_175_a_wrong_password_is_said_once(server: ValkeyServer) -> None:
    """What is wrong with every operation is one error with its remedy, not six."""
    done = operator(server).run("doctor", server.url.replace("://", "://nobody:sesame@"))

    assert done.returncode == 1
    assert [line[:8] for line in done.stdout.splitlines()] == ["error   ", "        "]
    assert "nothing works: store 127.0.0.1" in done.stdout
    assert "-> correct them in the store's URL" in done.stdout
    assert "sesame" not in done.stdout


def test_scenario_175_missing_tables_are_an_error_and_init_makes_them(tmp_path: Path) -> None:
    """Doctor names the missing tables, init makes them, and doctor is content."""
    needed("sqlalchemy", "sqlalchemy")
    program = Program((str(SINGLEFLIGHT),), f"sqlite:///{tmp_path}/leases.db", dict(os.environ))
    before = program.run("doctor", "--json", "LEASE")
    made = program.run("init", "LEASE")
    after = program.run("doctor", "--json", "LEASE")

    assert before.returncode == 1
    assert "tables" in said(before, "error")
    assert made.returncode == 0
    assert after.returncode == 0
    assert "CREATE TABLE" in program.run("init", "--print", "LEASE").stdout
    for database in ("postgresql", "mysql"):
        printed = program.run("init", "--print", f"{database}://u@host/app").stdout
        assert "GRANT SELECT, INSERT, UPDATE, DELETE ON singleflight_leases TO singleflight;" in printed
        assert "GRANT SELECT ON singleflight_schema TO operator;" in printed


def test_scenario_175_a_table_with_another_key_is_an_error() -> None:
    """A DynamoDB table whose key is not ours is named, as is one that is not there."""
    needed("ministack", "ministack")
    import boto3

    env = {**os.environ, **CREDENTIALS}
    with Ministack() as emulator:
        client = boto3.client(
            "dynamodb", region_name=REGION, endpoint_url=f"http://127.0.0.1:{emulator.port}",
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip
        client.create_table(
            TableName="wrong", BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )  # fmt: skip
        client.close()
        program = Program((str(SINGLEFLIGHT),), "", env)
        wrong = program.run("doctor", "--json", emulator.table("wrong"))
        absent = program.run("doctor", "--json", emulator.table("absent"))
        made = program.run("init", emulator.table("absent"))
        there = program.run("doctor", "--json", emulator.table("absent"))
        policies = re.split(
            "^#.*$", program.run("init", "--print", emulator.table("absent")).stdout, flags=re.MULTILINE
        )

    assert (wrong.returncode, absent.returncode, made.returncode, there.returncode) == (1, 1, 0, 0)
    assert "key" in said(wrong, "error")
    workers, operators = (json.loads(text)["Statement"][0]["Action"] for text in policies[1:])
    assert [*workers, "dynamodb:Scan"] == operators
    assert "singleflight init" in said(absent, "error") or "create" in said(absent, "error")


APP = """
import os
from celery import Celery
from singleflight import Singleton
from singleflight.celery import install

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.beat_schedule = {"tick": {"task": "shop.slow", "schedule": 60.0}}
app.conf.update(eval(os.environ.get("SETTINGS", "{}")))
install(app)


@app.task(name="shop.slow", singleton=True, acks_late=True, time_limit=7200, default_retry_delay=4000)
def slow(): ...


@app.task(name="shop.careless", singleton=True)
def careless(account_id): ...


@app.task(name="shop.joins", singleton=Singleton(by="*", on_conflict="join"))
def joins(account_id): ...


@app.task(name="shop.queues", singleton=Singleton(by="*", at_most_one="waiting_or_running"))
def queues(account_id): ...
"""


def doctor_of_shop(
    server: ValkeyServer, folder: Path, **settings: object
) -> subprocess.CompletedProcess[str]:
    """Have the app of this test's folder looked at, with some of its settings."""
    (folder / "shop.py").write_text(APP)
    env = {**os.environ, MARK: os.environ[MARK], "BROKER": server.url, "SETTINGS": repr(settings)}
    return Program((str(SINGLEFLIGHT),), "", env).run("doctor", "--json", "-A", "shop", cwd=folder)


def test_scenario_175_an_apps_set_up_is_looked_at(server: ValkeyServer, tmp_path: Path) -> None:
    """What cannot work is an error, what is dangerous a warning, and each has its remedy."""
    done = doctor_of_shop(server, tmp_path)
    errors, warnings = said(done, "error"), said(done, "warning")

    assert done.returncode == 1
    assert done.stderr == ""
    for what, remedy in (
        (
            "shop.slow may run 7200 s but the broker delivers it again after 3600 s",
            "raise visibility_timeout",
        ),
        ("shop.slow: retries wait beyond the visibility timeout of 3600 s", "the longest countdown or ETA"),
        ("shop.queues: acknowledged before they run", "set acks_late=True and reject_on_worker_lost=True"),
        ("task shop.careless takes account_id, but its key is its name only", "write by='account_id'"),
        ("beat_scheduler is celery.beat:PersistentScheduler", "set beat_scheduler = 'singleflight'"),
        ("no beat that shares its ticks has sent tick yet", "start every beat with --scheduler singleflight"),
    ):
        assert re.search(f"{re.escape(what)}.* -> .*{re.escape(remedy)}", warnings), what
    assert "shop.joins: on_conflict='join' takes over a result, and an app without a result" in errors
    assert "-> set result_backend to one that all can read" in errors


@pytest.mark.parametrize(
    ("settings", "what", "remedy"),
    [
        (
            {"singleflight_defaults": {"on_conflict": "raise", "skip_result": 1}},
            "shop.careless: skip_result=1 has no meaning beside on_conflict='raise'",
            "leave one of them out",
        ),
        (
            {"result_backend": "rpc://"},
            "shop.queues: at_most_one='waiting_or_running'",
            "use a result backend",
        ),
    ],
)
def test_scenario_175_what_contradicts_itself_is_an_error(
    server: ValkeyServer, tmp_path: Path, settings: dict[str, object], what: str, remedy: str
) -> None:
    """Options that exclude each other, or an unfit result backend, keep nothing else from being told."""
    done = doctor_of_shop(server, tmp_path, **settings)

    assert done.returncode == 1
    assert re.search(f"{re.escape(what)}.* -> {re.escape(remedy)}", said(done, "error"))
    assert "beat_scheduler is" in said(done, "warning")


def test_scenario_175_beats_that_do_not_share_their_ticks_are_found(
    server: ValkeyServer, tmp_path: Path
) -> None:
    """A beat of Celery's own on this host, and redbeat's lock in the broker, are named with the remedy."""
    (tmp_path / "shop.py").write_text(APP)
    env = {**os.environ, "BROKER": server.url}
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "shop",
        "beat",
        "--pidfile=",
        "-lINFO",
    ]
    beat = Child(command, log=tmp_path / "beat.log", ready="beat: Starting", env=env, cwd=tmp_path)
    with redis.Redis.from_url(server.url) as client:
        client.set("redbeat::lock", "token", ex=60)
        try:
            beat.wait_ready()
            done = doctor_of_shop(server, tmp_path, beat_scheduler="redbeat.RedBeatScheduler")
        finally:
            beat.kill()
            client.delete("redbeat::lock")
    warnings = said(done, "warning")

    assert f"process {beat.pid} of this host is a beat with --scheduler redbeat.RedBeatScheduler" in warnings
    assert "redbeat's lock redbeat::lock is held: a RedBeat beat runs" in warnings
    assert "singleflight_beat_scheduler = 'redbeat.RedBeatScheduler' and redbeat_lock_key = None" in warnings


def test_scenario_175_ticks_that_nobody_shares_are_found_in_the_store() -> None:
    """An entry that our beats sent in time is fine; one that is overdue, or was never sent, is not."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {name: {"task": "t", "schedule": 60.0} for name in ("sent", "late", "never")}
    app.conf.beat_scheduler = "singleflight"
    clock = [time.time() - 7200]
    store = MemoryStore(clock=lambda: clock[0])
    install(app, store)
    for name in ("late", "sent"):
        lease = Leases(store).claim(
            Request(tick_key("singleflight", name), f"beat:{name}", name, new_token())
        )
        assert isinstance(lease, Lease)
        lease.release()
        clock[0] = time.time()
    found = {one.level: one.what for one in of_beat(app, store) if "tick" in one.what}
    told = "\n".join(one.what for one in of_beat(app, store))

    assert "no beat that shares its ticks sends late (overdue by 119 min)" in found[Level.WARNING]
    assert (
        f"the last tick in the store is sent's, sent 0 s ago by {socket.gethostname()} pid {os.getpid()}"
        in told
    )
    assert "has sent never yet" in told


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import os\nos.environ['NOT_SET']", r"KeyError at \w+.py:2: 'NOT_SET'"),
        ("import nothing_like_this", "No module named 'nothing_like_this'"),
        ("app = (", r"\w+.py, line 1"),
        ("app = 3", "AttributeError"),
    ],
)
def test_scenario_175_an_app_that_cannot_be_loaded_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, cause: str
) -> None:
    """Whatever the app's module raises, the place is named instead of a traceback through Celery."""
    name = tmp_path.name  # another module in each test
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Failure, match=f"cannot load the app {name}: .*{cause}") as failed:
        load(name)

    assert "\n" not in failed.value.message


def test_scenario_175_without_celery_an_app_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to type."""
    monkeypatch.setitem(sys.modules, "celery.app.utils", None)
    with pytest.raises(Failure, match=r"pip install \"singleflight-tasks\[celery\]\""):
        load("shop")


@pytest.mark.parametrize(
    ("line", "scheduler"),
    [
        ("python -m celery -A shop beat", "celery.beat:PersistentScheduler"),
        ("/venv/bin/python /venv/bin/celery -A shop beat -S django -l INFO", "django"),
        ("celery --app=shop beat --scheduler=redbeat.RedBeatScheduler", "redbeat.RedBeatScheduler"),
        ("celery -A shop beat --scheduler singleflight", "singleflight"),
        ("celery -A shop worker -B -Sdjango", "django"),
        ("celery -A shop worker -c 4", None),
        ("grep celery beat", None),
        ("singleflight doctor -A beat", None),
    ],
)
def test_a_beat_is_known_by_its_command_line(line: str, scheduler: str | None) -> None:
    """Its scheduler is what its options say, else what the app has set."""
    assert scheduler_of(line.split(), "celery.beat:PersistentScheduler") == scheduler
