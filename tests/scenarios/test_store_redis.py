"""Troubles that users of such tools had with Redis, on a real server; the numbers are the scenarios'."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import redis
import valkey

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.lease import Granted, Reason
from singleflight.stores.base import Renewed, Waits
from singleflight.stores.lining import Kind
from singleflight.stores.redis import RedisStore
from singleflight.stores.redis.rights import COMMANDS
from singleflight.testing.contract_base import claim, granted, look, ran, refused, release, renew
from singleflight.testing.contract_line_base import At
from tests.support.proxy import FaultProxy, Mode
from tests.support.servers import ValkeyServer
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """A server of the test's own."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def admin(server: ValkeyServer) -> Iterator[redis.Redis]:
    """A connection with all rights."""
    with redis.Redis(port=server.port) as client:
        yield client


@pytest.fixture
def store(server: ValkeyServer) -> Iterator[RedisStore]:
    """A store on the server."""
    store = RedisStore(server.url, timeout=5)
    yield store
    store.close()


@pytest.fixture
def key() -> str:
    """A key as singleflight makes them."""
    return f"singleflight:shop.nightly_report:{{{uuid4().hex}}}"


def test_scenario_20_a_release_survives_a_broken_connection(server: ValkeyServer, key: str) -> None:
    """A release whose connection breaks at that moment is sent again by itself and frees the key."""
    with FaultProxy(server.port) as proxy:
        store = RedisStore(proxy.url, timeout=5)
        granted(store, key, "a")
        proxy.reset()

        assert release(store, key, "a") is True
        granted(store, key, "b")
        store.close()


def test_scenario_20_a_release_can_be_repeated_after_an_outage(server: ValkeyServer, key: str) -> None:
    """A release that met an outage says that the store is away; the same release works later."""
    with FaultProxy(server.port) as proxy:
        store = RedisStore(proxy.url, timeout=2)
        granted(store, key, "a")
        proxy.refuse()
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{proxy.port}"):
            release(store, key, "a")
        proxy.accept_again()

        assert release(store, key, "a") is True
        granted(store, key, "b")
        store.close()


def test_scenario_20_lost_replies_are_recognised(server: ValkeyServer, key: str) -> None:
    """A claim and a release that ran but whose replies were lost give the same answers when repeated."""
    with FaultProxy(server.port) as proxy:
        store = RedisStore(proxy.url, timeout=1)
        ran(store, f"{key}-warm", "up")
        proxy.mode = Mode.DROP_REPLIES
        with pytest.raises(StoreUnavailable):
            claim(store, key, "a")
        proxy.mode = Mode.PASS
        grant = granted(store, key, "a")
        proxy.mode = Mode.DROP_REPLIES
        with pytest.raises(StoreUnavailable):
            release(store, key, "a")
        proxy.mode = Mode.PASS

        assert release(store, key, "a") is True
        assert granted(store, key, "b").fence > grant.fence
        store.close()


def test_scenario_27_a_crash_at_any_moment_leaves_no_key_without_expiry(
    server: ValkeyServer, admin: redis.Redis
) -> None:
    """After 500 kill -9 in the middle of claims every key in the server has an expiry."""
    done = _run(KILL_500_CLAIMS, server.url)

    keys = list(admin.scan_iter(count=1000))
    assert done == ["500"]
    assert len(keys) > 500
    assert [key for key in keys if admin.pttl(key) <= 0] == []


# One process that forks the victims: a fork is quick enough to be killed at any moment of a claim.
# Each is left its first claim, so that a busy machine does not kill them all before.
KILL_500_CLAIMS = """
import os, random, signal, sys, time
from singleflight.stores.base import Claim
from singleflight.stores.redis import RedisStore
store, killed = RedisStore(sys.argv[1], timeout=5), 0
store.claim(Claim("first", "run", 0, "token", 60_000))
for number in range(500):
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        for turn in range(1_000_000):
            store.claim(Claim(f"{number}-{turn}", "run", 0, "token", 60_000, window_ms=turn % 2 * 60_000))
            if turn == 0:
                os.write(told, b"1")
    os.read(heard, 1)
    os.close(heard)
    os.close(told)
    time.sleep(random.uniform(0, 0.01))
    os.kill(pid, signal.SIGKILL)
    killed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
print(killed)
"""


def test_scenario_39_nobody_sees_that_the_script_cache_was_emptied(
    store: RedisStore, admin: redis.Redis, key: str
) -> None:
    """After SCRIPT FLUSH between any two operations each of them works, the pipeline included."""
    admin.script_flush()
    grant = granted(store, key, "a")
    admin.script_flush()
    assert refused(store, key, "b", wait_ms=60_000).reason is Reason.RUNNING
    admin.script_flush()
    assert renew(store, key, "a", grant) is Renewed.RENEWED
    admin.script_flush()
    assert release(store, key, "a") is True
    admin.script_flush()
    assert look(store, key).record.slot == "b"
    admin.script_flush()
    assert store.unqueue(key, "b") is True
    admin.script_flush()
    assert store.queue(key, "c", ttl_ms=60_000, running_too=True) is None
    admin.script_flush()
    assert store.evict(key) is True


def test_scenario_39_claims_in_parallel_survive_an_emptied_script_cache(
    store: RedisStore, admin: redis.Redis, key: str
) -> None:
    """Fifty claims at once are all granted while the script cache is emptied again and again."""
    over = threading.Event()

    def flush() -> int:
        flushes = 0
        while not over.is_set():
            admin.script_flush()
            flushes += 1
        return flushes

    with ThreadPoolExecutor(51) as pool:
        flushing = pool.submit(flush)
        grants = list(pool.map(lambda number: granted(store, f"{key}-{number}", "a"), range(50)))
        over.set()

    assert len({grant.fence for grant in grants}) > 1
    assert flushing.result() > 0


def test_scenario_41_a_demoted_server_is_left(key: str) -> None:
    """When the name points to a new primary, one request fails as unavailable and the next one arrives."""
    with ValkeyServer() as old, ValkeyServer() as new, FaultProxy(old.port) as name:
        at_old, at_new = redis.Redis(port=old.port), redis.Redis(port=new.port)
        at_new.replicaof("127.0.0.1", old.port)
        until(lambda: at_new.info("replication")["master_link_status"] == "up", what="the replica")
        store = RedisStore(name.url, timeout=5)
        grant = granted(store, key, "a")
        renew(store, key, "a", grant)
        until(lambda: at_new.exists(key), what="the key on the replica")
        at_new.replicaof("NO", "ONE")
        at_old.replicaof("127.0.0.1", new.port)
        name.upstream_port = new.port

        with pytest.raises(StoreUnavailable, match="the server is a replica"):
            claim(store, key, "b")
        assert refused(store, key, "b").reason is Reason.RUNNING
        with pytest.raises(StoreUnavailable, match="the server is a replica"):
            renew(store, key, "a", grant)
        assert renew(store, key, "a", grant) is Renewed.RENEWED
        for each in (store, at_old, at_new):
            each.close()


def test_scenario_41_a_server_that_is_primary_again_is_used_again(
    store: RedisStore, server: ValkeyServer, admin: redis.Redis, key: str
) -> None:
    """A server that was a replica for a while serves again without a restart, and no lease is lost."""
    grant = granted(store, key, "a")
    admin.replicaof("127.0.0.1", server.port + 1 if server.port < 65535 else server.port - 1)
    with pytest.raises(StoreUnavailable, match="the server is a replica"):
        claim(store, key, "b")
    admin.replicaof("NO", "ONE")

    assert renew(store, key, "a", grant) is Renewed.RENEWED
    assert release(store, key, "a") is True


def test_scenario_43_any_name_is_a_key(store: RedisStore, admin: redis.Redis) -> None:
    """Keys with braces, blanks, quotes and letters of any script work, each on its own."""
    pieces = ["{", "}", "{}", "}{", "{a}{b}", " ", "\n", '"', "'", "\\", "ключ", "鍵", "🙂", "*", "[", "?"]
    names = [f"singleflight:{one}{other}:{one}" for one in pieces for other in pieces]
    for name in names:
        grant = granted(store, name, name)
        assert renew(store, name, name, grant) is Renewed.RENEWED
        assert refused(store, name, "other").run_id == name
        assert release(store, name, name) is True

    assert admin.dbsize() == len(set(names))


def test_scenario_45_the_documented_commands_are_enough(
    server: ValkeyServer, admin: redis.Redis, key: str
) -> None:
    """A user who may only use the documented commands on the prefix can do everything."""
    store = _limited(server, admin)

    grant = granted(store, key, "a")
    assert renew(store, key, "a", grant) is Renewed.RENEWED
    assert refused(store, key, "b", wait_ms=60_000).reason is Reason.RUNNING
    assert release(store, key, "a") is True
    assert store.unqueue(key, "b") is True
    assert store.queue(key, "c", ttl_ms=60_000, running_too=True) is None
    assert look(store, key).record.slot == "c"
    assert store.evict(key) is True
    _stand_in_line(store, admin, key)
    store.close()


def _stand_in_line(store: RedisStore, admin: redis.Redis, key: str) -> None:
    """Do all that a line does, also what it does once its record is lost."""
    at = At(store, f"{key}-line", f"{key}-home")
    at.granted("a")
    for waiter in ("waiter", "next"):
        at.park(waiter)
    at.park("friend", kind=Kind.JOINING, life_ms=60_000)
    assert at.waiting
    for called in at.release("a"):
        at.sent(called)
    admin.delete(at.key)
    admin.zadd(at.home, {at.key: 1})
    at.sweep()
    look(store, at.key)


@pytest.mark.parametrize("command", COMMANDS)
def test_scenario_45_a_missing_command_is_named(
    server: ValkeyServer, admin: redis.Redis, key: str, command: str
) -> None:
    """Without one of the documented commands the first use says which one, and on which keys."""
    store = _limited(server, admin, f"-{command}")

    def use_everything() -> None:
        granted(store, key, "a")
        for waiter in ("waiter", "next"):
            refused(store, key, waiter, wait_ms=60_000, waits=Waits.LISTENING)
        release(store, key, "a")
        store.listen(key, "waiter", seconds=1.0)
        for waiter in ("waiter", "next"):
            ran(store, key, waiter, wait_ms=60_000, waits=Waits.LISTENING)
        store.queue(key, "b", ttl_ms=60_000, running_too=False)
        store.unqueue(key, "b")
        look(store, key)
        _stand_in_line(store, admin, key)

    with pytest.raises(ConfigurationError) as caught:
        use_everything()
    assert f"the command {command.upper()} on {key}" in str(caught.value)
    assert "~singleflight:*" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    store.close()


def test_scenario_45_a_foreign_prefix_is_named(server: ValkeyServer, admin: redis.Redis) -> None:
    """A user without a right on the keys is told which pattern is missing; it is never a duplicate."""
    store = _limited(server, admin)

    with pytest.raises(ConfigurationError, match=r"~shop:\*"):
        claim(store, "shop:nightly_report", "a")
    store.close()


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_scenario_48_a_full_server_refuses_claims_and_nothing_else(key: str, kind: str) -> None:
    """On a full server a claim is a store error; renewing, refusing and releasing go on; it recovers."""
    with (
        ValkeyServer("--maxmemory", "6mb", "--maxmemory-policy", "noeviction", server=kind) as server,
        redis.Redis(port=server.port) as admin,
    ):
        store = RedisStore(server.url, timeout=5)
        grant = granted(store, key, "a")
        renew(store, key, "a", grant)
        _fill(admin)

        with pytest.raises(StoreUnavailable, match="raise maxmemory"):
            claim(store, f"{key}-2", "b")
        assert store.peek(f"{key}-2") is None
        assert refused(store, key, "b").reason is Reason.RUNNING
        assert renew(store, key, "a", grant) is Renewed.RENEWED
        assert release(store, key, "a") is True
        assert refused(store, key, "a", token="late copy").reason is Reason.FINISHED
        assert 0 < look(store, key).remaining_ms <= 60_000 + store.remember * 1000

        admin.delete(*admin.scan_iter("filler-*"))
        granted(store, f"{key}-2", "b")
        store.close()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("kind", [redis.Redis, valkey.Valkey])
def test_scenario_49_any_ready_client_will_do(
    server: ValkeyServer, key: str, kind: type, decode: bool, protocol: int
) -> None:
    """A store made of a ready client works whatever that client decodes and speaks, and leaves it alone."""
    # RESP2 is not asked for by name, because redis-py 4 knows no other and refuses the question.
    speaks = {"protocol": 3} if protocol == 3 else {}
    if speaks and "protocol" not in signature(kind).parameters:
        pytest.skip(f"{kind.__module__} of this version speaks RESP2 only; type: pip install 'redis>=5'")
    with kind(port=server.port, db=2, decode_responses=decode, **speaks) as client:
        store = RedisStore.from_client(client, timeout=5)
        grant = granted(store, key, "a")
        assert renew(store, key, "a", grant) is Renewed.RENEWED
        assert refused(store, key, "b").run_id == "a"
        assert release(store, key, "a") is True
        store.close()

        assert client.exists(key)


def test_scenario_49_a_ready_client_over_a_unix_socket(server: ValkeyServer, key: str) -> None:
    """A store made of a client on a unix socket uses that socket."""
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        store = RedisStore.from_client(client, timeout=5)
        ran(store, key, "a")
        store.close()

        assert client.exists(key)


def test_scenario_55_a_store_that_is_away_is_not_a_lost_lease(
    store: RedisStore, server: ValkeyServer, key: str
) -> None:
    """A renewal that finds no server is an error; one that finds another owner is LOST."""
    away, stolen = granted(store, key, "a"), granted(store, f"{key}-2", "a", ttl_ms=1)
    until(lambda: isinstance(claim(store, f"{key}-2", "b"), Granted), what="the lease to lapse")
    assert renew(store, f"{key}-2", "a", stolen) is Renewed.LOST

    server.stop()

    with pytest.raises(StoreUnavailable):
        renew(store, key, "a", away)


def test_scenario_55_a_server_that_hangs_does_not_hold_up_renewals(server: ValkeyServer, key: str) -> None:
    """A renewal waits no longer than a tenth of its ttl, also where other requests may wait for longer."""
    store = RedisStore(server.url, timeout=600)
    grant = granted(store, key, "a")
    renew(store, key, "a", grant, ttl_ms=1000)
    server.pause()
    try:
        with pytest.raises(StoreUnavailable):
            renew(store, key, "a", grant, ttl_ms=1000)
    finally:
        server.resume()
    store.close()


def test_scenario_65_forked_children_do_not_share_sockets(server: ValkeyServer, key: str) -> None:
    """A store used before a fork works in eight children at once and in the parent, each on its own lease."""
    assert _run(FORK_8, server.url, key) == ["[0, 0, 0, 0, 0, 0, 0, 0]", "the parent still works"]


FORK_8 = """
import itertools, os, sys
from singleflight.lease import Granted, Outcome
from singleflight.stores.base import Claim, Release, Renewal, Renewed
from singleflight.stores.redis import RedisStore
url, key = sys.argv[1:]
store = RedisStore(url, timeout=30)

numbers = itertools.count()

def turns(count):
    me = os.getpid()
    for _ in range(count):
        run, own = f"{me}-{next(numbers)}", f"{key}-{me}"
        grant = store.claim(Claim(own, run, 0, run, 60_000))
        assert isinstance(grant, Granted), grant
        assert store.renew([Renewal(own, run, 0, run, grant.fence, 60_000)]) == [Renewed.RENEWED]
        assert store.peek(own).record.token == run
        assert store.release(Release(own, run, 0, run, Outcome.FINISHED)) is True

turns(5)
children = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        try:
            turns(250)
            os._exit(0)
        finally:
            os._exit(1)
    children.append(pid)
turns(100)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
turns(5)
print("the parent still works")
"""


def _run(script: str, *arguments: str) -> list[str]:
    """Run a script in a process of its own, because forking one with threads is not safe."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _limited(server: ValkeyServer, admin: redis.Redis, *rights: str) -> RedisStore:
    """Return a store of a user with the documented rights, changed by `rights`, and no script cached."""
    documented = [f"+{command}" for command in COMMANDS]
    admin.execute_command(
        *("ACL", "SETUSER", "limited", "reset", "on", ">s3cret", "~singleflight:*", "-@all"),
        *(*documented, *rights),
    )
    admin.script_flush()
    return RedisStore(f"redis://limited:s3cret@127.0.0.1:{server.port}/0", timeout=5)


def _fill(admin: redis.Redis) -> None:
    """Write until the server refuses."""
    for size in (100_000, 1000, 10):
        for number in range(100_000):
            try:
                admin.set(f"filler-{size}-{number}", "x" * size)
            except redis.exceptions.OutOfMemoryError:
                break
        else:
            pytest.fail("the server took everything")
