"""The store in Redis and Valkey keeps the contract, and what only it does."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import redis

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.lease import Holder, Outcome
from singleflight.stores import open_store
from singleflight.stores.base import Claim, Release, Renewal, Renewed, Waits
from singleflight.stores.lining import Arrival
from singleflight.stores.redis import RedisStore
from singleflight.stores.redis.errors import driver, translated
from singleflight.stores.redis.options import options_from_url
from singleflight.testing import FakeClock, LineContract, StoreContract
from singleflight.testing.contract_base import claim, granted, ran, refused, release
from tests.stores.clocked import ClockedRedisStore
from tests.support.proxy import FaultProxy, Mode
from tests.support.servers import ValkeyServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


class _OnValkey(StoreContract, LineContract):
    counts_refusals = True

    def lose(self, store: RedisStore, key: str) -> None:
        """Delete the key through a connection of the test's own."""
        with redis.Redis(**store._connections.topology.options) as client:
            client.delete(key)


class TestRedisStore(_OnValkey):
    """The contract, by the server's clock."""

    @pytest.fixture
    def store(self, valkey: ValkeyServer) -> Iterator[RedisStore]:
        """A store on the server."""
        store = RedisStore.from_url(valkey.url, timeout=5)
        yield store
        store.close()


class TestRedisStoreOnATurnedClock(_OnValkey):
    """The contract on exact instants and on a clock that steps back."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that only moves when a test says so."""
        return FakeClock()

    @pytest.fixture
    def store(self, valkey: ValkeyServer, clock: FakeClock) -> Iterator[RedisStore]:
        """A store on the server, by that clock."""
        store = ClockedRedisStore(valkey.url, clock=clock, timeout=5)
        yield store
        store.close()


@pytest.fixture
def store(valkey: ValkeyServer) -> Iterator[RedisStore]:
    """A store on the server."""
    store = RedisStore(valkey.url, timeout=5)
    yield store
    store.close()


@pytest.fixture
def server(valkey: ValkeyServer) -> Iterator[redis.Redis]:
    """A connection of the test's own."""
    with redis.Redis(port=valkey.port) as client:
        yield client


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"singleflight:shop.nightly_report:{{{uuid4().hex}}}"


def test_a_key_with_one_ended_run_is_small(store: RedisStore, server: redis.Redis, key: str) -> None:
    """A lease of a usual task that has ended takes at most 512 bytes of the server's memory."""
    holder = Holder("shop.tasks.nightly_report", "3f2a9c1b7d4e", 12345)
    run, token = str(uuid4()), uuid4().hex
    granted(store, key, run, token=token, holder=holder.encode(), window_ms=3_600_000)
    release(store, key, run, token=token)

    assert server.memory_usage(key) <= 512


def test_each_operation_is_one_command(store: RedisStore, server: redis.Redis, key: str) -> None:
    """Once the server knows the scripts, every operation is a single EVALSHA."""
    granted(store, key, "warm up the connection and the scripts")
    release(store, key, "warm up the connection and the scripts")
    before = _calls(server)
    granted(store, key, "a")
    release(store, key, "a")
    after = _calls(server)

    assert after["evalsha"] - before["evalsha"] == 2
    assert after.get("eval", 0) == before.get("eval", 0)


def test_a_key_that_nobody_waits_for_costs_no_command_more(
    store: RedisStore, server: redis.Redis, key: str
) -> None:
    """Claim and release in line: the script, the time, the record read and written; nothing of the line."""
    home = f"{key}:home"
    claim = Claim(key, "a", 0, "token", 60_000)
    for _ in range(2):  # the server knows no script at first
        store.claim_in_line(claim, Arrival(homes=(home,)))
        store.release_in_line(Release(key, "a", 0, "token", Outcome.REQUEUED), (home,))
    before = _calls(server)
    store.claim_in_line(claim, Arrival(homes=(home,)))
    store.release_in_line(Release(key, "a", 0, "token", Outcome.REQUEUED), (home,))
    after = _calls(server)

    used = {name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0)}
    del used["info"]
    assert used == {"evalsha": 2, "time": 2, "get": 2, "set": 2}


def test_many_renewals_are_one_write_to_the_socket(valkey: ValkeyServer, key: str) -> None:
    """A hundred renewals go out in one pipeline, without a transaction around them."""
    store = RedisStore(valkey.url, timeout=5)
    with redis.Redis(port=valkey.port) as server:
        before = _calls(server)
        answers = store.renew([Renewal(f"{key}{n}", "a", 0, "token", 1, 60_000) for n in range(100)])
        after = _calls(server)
    store.close()

    assert answers == [Renewed.RESTORED] * 100
    assert after.get("multi", 0) == before.get("multi", 0)
    assert after["evalsha"] - before.get("evalsha", 0) == 100


def test_a_short_lease_does_not_hurry_the_renewal_of_a_long_one(valkey: ValkeyServer, key: str) -> None:
    """On a line too slow for a short lease its renewal fails alone; those of long ones in the batch go on."""
    lives = {"long": 600_000, "short": 500, "longer": 900_000}
    with FaultProxy(valkey.port) as proxy:
        store = RedisStore(proxy.url, timeout=30)
        proxy.delay = 0.2  # there and back: far more than a tenth of half a second
        answers = store.renew([Renewal(f"{key}{n}", "a", 0, "t", 1, ttl) for n, ttl in lives.items()])
        store.close()

    long, short, longer = answers
    assert (long, longer) == (Renewed.RESTORED, Renewed.RESTORED)
    assert isinstance(short, StoreUnavailable)


def test_a_record_of_another_version_is_no_duplicate(
    store: RedisStore, server: redis.Redis, key: str
) -> None:
    """A record of an unknown version is a permanent fault for a claim, and lost for its holder alone."""
    server.set(key, b"sf\x63, or another layout")

    with pytest.raises(ConfigurationError, match=r"record version 99, this singleflight reads 2"):
        claim(store, key, "a")
    answers = store.renew([Renewal(k, "a", 0, "t", 1, 60_000) for k in (key, f"{key}2")])
    assert answers == [Renewed.LOST, Renewed.RESTORED]


def test_somebody_elses_key_is_no_duplicate(store: RedisStore, server: redis.Redis, key: str) -> None:
    """A key that holds something else is a permanent fault that names the key."""
    server.set(key, "a cache entry")

    with pytest.raises(ConfigurationError, match=r"something else's key; choose another prefix"):
        claim(store, key, "a")


def test_a_database_that_is_not_there_is_permanent(valkey: ValkeyServer, key: str) -> None:
    """A number that the server does not have is told at once, and not taken for an outage."""
    url = valkey.url.rpartition("/")[0] + "/4711"
    store = RedisStore(url)

    with pytest.raises(ConfigurationError, match="no such database"):
        claim(store, key, "a")


def test_a_wrong_password_is_permanent_and_never_shown(valkey: ValkeyServer, key: str) -> None:
    """A refused password is a permanent fault whose text does not contain it."""
    store = RedisStore(f"redis://nobody:hunter2@127.0.0.1:{valkey.port}/0")

    with pytest.raises(ConfigurationError, match="password refused") as caught:
        claim(store, key, "a")
    assert "hunter2" not in str(caught.value)
    assert f"127.0.0.1:{valkey.port}" in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "kind"),
    [
        *(
            (one, "valkey")
            for one in ("EVAL", "TIME", "GET", "SET", "RPUSH", "PEXPIRE", "BLPOP", "ZADD", "ZRANGE")
        ),
        *(("TIME", "redis"), ("ZADD", "redis"), ("EVALSHA", "redis")),
    ],
)
def test_a_server_that_lacks_what_leases_need_is_permanent(key: str, missing: str, kind: str) -> None:
    """In a script too it is no outage, for which runs would be deferred for ever: the error names it."""
    listens = {"wait_ms": 5000, "waits": Waits.LISTENING}

    def try_all(store: RedisStore) -> None:
        granted(store, key, "a")
        claim(store, key, "b", **listens)
        claim(store, key, "c", **listens)
        release(store, key, "a")
        store.listen(key, "b", seconds=0.2)
        claim(store, key, "b", **listens)
        release(store, key, "b")

    with (
        ValkeyServer("--rename-command", missing, "hidden", server=kind) as server,
        closing(RedisStore(server.url, timeout=10)) as store,
        pytest.raises(ConfigurationError, match=r"cannot run what leases need|lacks a command"),
    ):
        try_all(store)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (
            "ERR Error running script (call to f): @user_script:9: attempt to call a nil value",
            ConfigurationError,
        ),
        ("ERR user_script:1: Script attempted to access nonexistent global variable 'x'", ConfigurationError),
        ("ERR Error compiling script (new function): user_script:1: '=' expected", ConfigurationError),
        ("ERR unknown command 'EVALSHA', with args beginning with", ConfigurationError),
        ("ERR Unknown Redis command called from script script: 7, on @user_script:3.", ConfigurationError),
        ("ERR wrong number of arguments for 'pexpire' command", ConfigurationError),
        ("DENIED Redis is running in protected mode because protected mode is enabled", ConfigurationError),
        ("CROSSSLOT Keys in request don't hash to the same slot", ConfigurationError),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", ConfigurationError),
        ("ERR Error running script (call to f_1): Script killed by user with SCRIPT KILL", StoreUnavailable),
        (
            "READONLY You can't write against a read only replica. on @user_script:3.",
            StoreUnavailable,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreUnavailable),
        ("MISCONF Errors writing to the AOF file: not allowed", StoreUnavailable),
        ("ERR upstream failure", StoreUnavailable),
    ],
)
def test_an_answer_that_cannot_change_is_permanent_and_another_is_an_outage(
    error: str, meaning: type[Exception]
) -> None:
    """Whatever version and proxy answers; what may pass is waited for."""
    assert type(translated(driver.ResponseError(error), "here", "k")) is meaning


def test_no_server_is_store_unavailable() -> None:
    """A server that is not there is unavailable, and the text names its address without password."""
    store = RedisStore.from_url(f"redis://:hunter2@127.0.0.1:{free_port()}/0")

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:\d+/0") as caught:
        claim(store, "key", "a")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("scheme", ["redis", "valkey", "unix", "redis+socket"])
def test_every_scheme_reaches_the_server(valkey: ValkeyServer, key: str, scheme: str) -> None:
    """Each kind of URL opens the same store, in the database that it names."""
    place = f"127.0.0.1:{valkey.port}/3" if scheme in ("redis", "valkey") else f"{valkey.socket_path}?db=3"
    if scheme == "redis+socket":
        place = place.replace("db", "virtual_host")
    store = open_store(f"{scheme}://{place}")
    granted(store, key, "a")
    store.close()

    with redis.Redis(port=valkey.port, db=3) as server:
        assert server.exists(key)


def test_tls_options_come_from_the_url() -> None:
    """A URL with TLS keeps its certificate options, in Celery's spelling too; timeouts stay ours."""
    options = options_from_url("valkeys://h:1/2?ssl_cert_reqs=CERT_NONE&ssl_ca_certs=/ca&socket_timeout=9")

    assert options["connection_class"] is redis.SSLConnection
    assert (options["ssl_cert_reqs"], options["ssl_ca_certs"]) == ("none", "/ca")
    assert "socket_timeout" not in options


def test_an_unknown_option_is_refused() -> None:
    """A misspelt option in the URL is refused when the store is opened."""
    with pytest.raises(ConfigurationError, match="sockettimeout is not an option"):
        open_store("redis://localhost?sockettimeout=3")


def test_a_client_without_one_server_is_refused() -> None:
    """An object that is no client of one server is refused with a sentence that says what to pass."""
    with pytest.raises(ConfigurationError, match=r"builtins\.object is no client"):
        RedisStore.from_client(object())


def test_a_missing_driver_is_named_with_its_remedy() -> None:
    """Without redis-py the store says what to install, and the library itself still imports."""
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import singleflight\n"
        "from singleflight.stores import open_store\n"
        "try: open_store('redis://localhost')\n"
        "except singleflight.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert 'pip install "singleflight-tasks[redis]"' in done.stdout, done.stderr


def test_the_library_imports_no_driver() -> None:
    """Importing singleflight does not import redis-py."""
    code = "import sys, singleflight; print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert done.stdout.strip() == "False", done.stderr


def test_a_store_may_be_used_after_close(store: RedisStore, key: str) -> None:
    """Closing drops the connections only."""
    ran(store, key, "a")
    store.close()

    assert refused(store, key, "a", token="late copy").ended


def test_an_interrupted_request_does_not_leave_its_reply_behind(valkey: ValkeyServer, key: str) -> None:
    """A time limit that strikes between request and reply never hands that reply to the next request."""

    class TimeLimit(BaseException):
        pass

    def strike(*_: object) -> None:
        raise TimeLimit

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, strike)
    with FaultProxy(valkey.port) as proxy:
        store = RedisStore(proxy.url, timeout=20)
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

        answers = [granted(store, f"{key}{number}", "b") for number in range(5)]
        store.close()

    assert all(answer.fence > 0 for answer in answers)


# What was being read or opened when it struck is closed later, with a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_time_limits_that_strike_anywhere_use_up_no_connections(valkey: ValkeyServer, key: str) -> None:
    """After more interrupted requests than a pool has connections, the store answers as before."""

    class TimeLimit(BaseException):
        pass

    def strike(*_: object) -> None:
        raise TimeLimit

    store = RedisStore(valkey.url, timeout=10)
    before = signal.signal(signal.SIGALRM, strike)
    struck = 0
    try:
        while struck < 1500:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + struck % 40 * 1e-5)
                for _ in range(1000):  # one that strikes in a finaliser is swallowed by Python
                    store.peek(key)
            except TimeLimit:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert granted(store, key, "a").fence > 0
    store.close()


def test_the_record_reads_as_documented(store: RedisStore, server: redis.Redis, key: str) -> None:
    """What lies in the server is what lua/read.lua says."""
    grant = granted(store, key, "a", ttl_ms=60_000, holder="h")
    raw = server.get(key)
    mark, version, held, first, kept, ended, *numbers = struct.unpack_from(">2s5B8d", raw)
    start = grant.started_ms

    assert (mark, version, held, first, kept, ended) == (b"sf", 2, 2, 0, 1, 0)
    assert numbers == [grant.fence, start + 60_000, 60_000, start, 0, 0, 0, 0]
    assert raw.endswith(b"\xffa\xfe00")


def _calls(server: redis.Redis) -> dict[str, int]:
    return {
        name.removeprefix("cmdstat_"): int(stats["calls"])
        for name, stats in server.info("commandstats").items()
    }
