"""The store keeps the contract wherever it may be: in a cluster, behind sentinels, by TLS, on Redis 7.0."""

from __future__ import annotations

import re
import socket
import ssl
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

import pytest
import redis
from redis.cluster import ClusterNode
from redis.crc import key_slot
from redis.sentinel import Sentinel

from singleflight.errors import ConfigurationError, SingleflightError, StoreUnavailable
from singleflight.lease import Busy, Granted, Reason
from singleflight.stores import open_store
from singleflight.stores.base import Renewal, Renewed
from singleflight.stores.redis import RedisStore
from singleflight.stores.redis.topology import Cluster, Sentinels, topology_from_url
from singleflight.testing import StoreContract
from singleflight.testing.contract_base import claim, granted, look, ran, refused, release, renew
from tests.support.groups import SERVICE, Rotating, SentinelGroup, ValkeyCluster, client_of
from tests.support.servers import ValkeyServer, free_port
from tests.support.tls import Certificates
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.tls import TlsServer

STORES_PAGE = Path(__file__).parents[2] / "docs" / "stores.md"


class _OnRedis(StoreContract):
    counts_refusals = True


class TestRedis7(_OnRedis):
    """The contract on the distribution's Redis."""

    @pytest.fixture
    def store(self, redis7: ValkeyServer) -> Iterator[RedisStore]:
        """A store on it, by its unix socket."""
        with closing(RedisStore(f"unix://{redis7.socket_path}", timeout=5)) as store:
            yield store

    def lose(self, store: RedisStore, key: str) -> None:
        """Delete the key through a connection of the test's own."""
        with redis.Redis(unix_socket_path=store._connections.topology.options["path"]) as client:
            client.delete(key)


class TestTls(_OnRedis):
    """The contract by TLS with certificates on both sides, for a user with the documented rights alone."""

    @pytest.fixture
    def store(self, tls: TlsServer) -> Iterator[RedisStore]:
        """A store of that user, who may list keys besides."""
        limit(tls, "limited", "+scan", "~p*", r"~\**")  # the contract lists other prefixes
        with closing(open_store(tls.url_of("limited", "secret"), timeout=5)) as store:
            self.tls = tls
            yield store

    def lose(self, store: RedisStore, key: str) -> None:
        """Delete the key by the server's other door."""
        del store
        with redis.Redis(unix_socket_path=str(self.tls.socket_path)) as client:
            client.delete(key)


class TestCluster(_OnRedis):
    """The contract on a cluster of three nodes."""

    @pytest.fixture
    def store(self, cluster: ValkeyCluster) -> Iterator[RedisStore]:
        """A store on it."""
        with closing(open_store(cluster.url, timeout=5)) as store:
            self.cluster = cluster
            yield store

    def lose(self, store: RedisStore, key: str) -> None:
        """Delete the key on the node that has it."""
        del store
        self.cluster.client(self.cluster.owner(key_slot(key.encode()))).delete(key)


class TestSentinels(_OnRedis):
    """The contract on the primary that sentinels name, all with passwords."""

    @pytest.fixture
    def store(self, sentinels: SentinelGroup) -> Iterator[RedisStore]:
        """A store on it."""
        with closing(open_store(sentinels.url, timeout=5)) as store:
            self.sentinels = sentinels
            yield store

    def lose(self, store: RedisStore, key: str) -> None:
        """Delete the key on the primary."""
        del store
        self.sentinels.client(self.sentinels.primary()).delete(key)


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"singleflight:shop.nightly_report:{{{uuid4().hex}}}"


def limit(server: ValkeyServer, user: str, *more: str) -> None:
    """Give a user the rights that the documentation names and these, and no others."""
    (line,) = re.findall(r"^ACL SETUSER singleflight (.+)$", STORES_PAGE.read_text("utf-8"), re.MULTILINE)
    rights = line.replace("PASSWORD", "secret").split()
    with redis.Redis(unix_socket_path=str(server.socket_path)) as admin:
        admin.execute_command("ACL", "SETUSER", user, "reset", *rights, *more)


def test_scenario_43_names_with_braces_work_on_a_cluster(cluster: ValkeyCluster) -> None:
    """Three hundred names with braces, blanks and quotes in them are leases of their own on a cluster."""
    pieces = ["{", "}", "{}", "}{", "{a}{b}", " ", '"', "ключ", "🙂", "*", ":"]
    names = [f"singleflight:{a}{b}:{uuid4().hex}{c}" for a in pieces for b in pieces for c in pieces][:300]
    with closing(open_store(cluster.url, timeout=5)) as store:
        for name in names:
            grant = granted(store, name, name, window_ms=60_000)
            assert renew(store, name, name, grant) is Renewed.RENEWED
            assert refused(store, name, "other", wait_ms=60_000).run_id == name
            assert release(store, name, name) is True
            assert refused(store, name, "third").reason is Reason.WINDOW
            assert store.queue(name, "other", ttl_ms=60_000, running_too=True) is None


def test_renewals_are_one_pipeline_to_each_node(cluster: ValkeyCluster, key: str) -> None:
    """A hundred renewals reach each node in one write; a node that forgot the script gets it again."""
    with closing(open_store(cluster.url, timeout=5)) as store:
        keys = [f"{key[:-1]}{number}}}" for number in range(100)]
        grants = {each: granted(store, each, "a") for each in keys}
        renewals = [Renewal(k, "a", 0, "token-a-0", one.fence, 60_000) for k, one in grants.items()]
        assert store.renew(renewals) == [Renewed.RENEWED] * 100
        before = [reads(cluster, node) for node in range(3)]
        assert store.renew(renewals) == [Renewed.RENEWED] * 100
        after = [reads(cluster, node) for node in range(3)]
        cluster.client(1).script_flush()

        assert store.renew(renewals) == [Renewed.RENEWED] * 100
    # The two questions themselves are among the reads; a pipeline of 30 scripts takes a few more than one.
    assert all(new - old < 15 for old, new in zip(before, after, strict=True)), (before, after)


def reads(cluster: ValkeyCluster, node: int) -> int:
    """Return how often a node has read from a client."""
    return int(cluster.client(node).info("stats")["total_reads_processed"])


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("redis://a", ()),
        ("sentinel://a?master_name=m&min_replicas=1", ("wait",)),
        ("redis+cluster://a", ("cluster|slots", "asking")),
    ],
)
def test_init_prints_the_documented_rights(url: str, more: tuple[str, ...]) -> None:
    """What `singleflight init` prints for a user is what the page says, for each kind of place."""
    from click.testing import CliRunner

    from singleflight.cli.operators.init import init

    (line,) = re.findall(r"^ACL SETUSER singleflight (.+)$", STORES_PAGE.read_text("utf-8"), re.MULTILINE)
    printed = CliRunner().invoke(init, [url]).output
    (own,) = re.findall(r"^ACL SETUSER singleflight (.+)$", printed, re.MULTILINE)
    besides = {f"+{name}" for name in more} | {"resetchannels"}

    assert set(own.split()) == set(line.split()) | besides
    assert all(f"+{name}" in STORES_PAGE.read_text("utf-8") for name in ("wait", "cluster|slots +asking"))


def test_few_rights_are_enough_in_a_cluster(cluster: ValkeyCluster, key: str) -> None:
    """The documented rights are enough for every operation in a cluster."""
    for node in cluster.nodes:
        limit(node, "limited", "+cluster|slots", "+asking")
    url = cluster.url.replace("://", "://limited:secret@")
    with closing(open_store(url, timeout=5)) as store:
        grant = granted(store, key, "a")
        assert renew(store, key, "a", grant) is Renewed.RENEWED
        assert release(store, key, "a") is True
        assert store.queue(key, "b", ttl_ms=60_000, running_too=True) is None
        assert store.unqueue(key, "b") is True
        assert store.evict(key) is True
        with pytest.raises(ConfigurationError, match="the command SCAN"):
            list(store.scan("singleflight"))


def test_a_node_that_is_away_takes_only_its_own_leases_with_it(key: str) -> None:
    """With one node dead, leases on the others are renewed, claimed and released, and its own are errors."""
    with ValkeyCluster() as cluster, closing(open_store(cluster.url, timeout=1)) as store:
        keys = [f"{key[:-1]}{number}}}" for number in range(30)]
        homes = [cluster.owner(key_slot(each.encode())) for each in keys]
        grants = [granted(store, each, "a") for each in keys]
        cluster.nodes[1].kill()
        renewals = [
            Renewal(each, "a", 0, "token-a-0", grant.fence, 60_000)
            for each, grant in zip(keys, grants, strict=True)
        ]
        answers = store.renew(renewals)

        assert set(homes) == {0, 1, 2}
        for home, answer in zip(homes, answers, strict=True):
            assert isinstance(answer, StoreUnavailable) if home == 1 else answer is Renewed.RENEWED
        for each, home in zip(keys, homes, strict=True):
            if home == 1:
                with pytest.raises(StoreUnavailable):
                    release(store, each, "a")
            else:
                assert release(store, each, "a") is True
                granted(store, each, "b")


def test_a_node_that_is_in_no_cluster_does_not_hide_the_others(cluster: ValkeyCluster, key: str) -> None:
    """A node taken out of the cluster, or none at all, may stand first in the URL: the next one is asked."""
    nodes = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
    with (
        ValkeyServer("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as alone,
        ValkeyServer() as plain,
    ):
        for stranger in (alone, plain):
            url = f"redis+cluster://127.0.0.1:{stranger.port},{','.join(nodes)}"
            with closing(open_store(url, timeout=5)) as store:
                granted(store, f"{key[:-1]}{stranger.port}}}", "a")
        with (
            closing(open_store(f"redis+cluster://127.0.0.1:{plain.port}")) as store,
            pytest.raises(ConfigurationError, match="no node of a cluster"),
        ):
            claim(store, key, "a")


def test_a_silent_cluster_costs_the_timeout_however_many_nodes_it_has(key: str) -> None:
    """Of nodes that take connections and say nothing, each of a request's two tries waits for one."""
    with ExitStack() as stack:
        # An address of their own: what another test has left behind may look for its server on such a port.
        host = "127.0.0.77" if sys.platform == "linux" else "127.0.0.1"
        silent = [stack.enter_context(socket.create_server((host, 0))) for _ in range(20)]
        nodes = ",".join(f"{host}:{one.getsockname()[1]}" for one in silent)
        store = stack.enter_context(closing(open_store(f"redis+cluster://{nodes}", timeout=1)))
        with pytest.raises(StoreUnavailable):
            claim(store, key, "a")

        asked = 0
        for one in silent:
            one.settimeout(0)
            with suppress(BlockingIOError):
                one.accept()[0].close()
                asked += 1
        assert asked == 2


def test_leases_live_on_while_their_slot_moves(key: str) -> None:
    """While a slot moves to and fro between nodes, its leases are claimed, renewed and released as ever."""
    slot, numbers, over = key_slot(key.encode()), count(), threading.Event()
    inside = [threading.Lock() for _ in range(4)]

    def work(number: int) -> int:
        mine, done, lock = f"{key}{number % 4}", 0, inside[number % 4]
        while not over.is_set():
            run = f"run-{next(numbers)}"
            answer = claim(store, mine, run)
            if isinstance(answer, Granted):
                assert lock.acquire(blocking=False), "two hold the lease"
                assert renew(store, mine, run, answer) is Renewed.RENEWED
                lock.release()
                assert release(store, mine, run) is True
                done += 1
        return done

    with ValkeyCluster() as cluster, closing(open_store(cluster.url, timeout=20)) as store:
        home = cluster.owner(slot)
        with ThreadPoolExecutor(8) as pool:
            working = [pool.submit(work, number) for number in range(8)]
            try:
                for turn in range(6):
                    target = (home + 1 + turn) % 3
                    cluster.begin_move(slot, target)
                    fresh = f"{key}fresh-{turn}"
                    grant = granted(store, fresh, "a")  # asked for where the slot goes (ASK)
                    held = [Renewal(fresh, "a", 0, "token-a-0", grant.fence, 60_000)]
                    assert store.renew(held) == [Renewed.RENEWED]
                    until(
                        lambda target=target: not cluster.move_keys(slot, target), what="the last key to go"
                    )
                    cluster.end_move(slot, target)
                    assert store.renew(held) == [Renewed.RENEWED]
            finally:
                over.set()
            done = [each.result() for each in working]
        seen = {name for node in range(3) for name in cluster.client(node).info("errorstats")}

    assert sum(done) > 50, done
    assert {"errorstat_ASK", "errorstat_MOVED"} <= seen, "no request was ever sent on"


def test_celerys_url_and_options_name_the_same_primary(sentinels: SentinelGroup, key: str) -> None:
    """Celery's form of the URL with its transport options opens the same store as ours."""
    url = ";".join(f"sentinel://:{quote(sentinels.password)}@{node}/0" for node in sentinels.nodes)
    options = {"master_name": SERVICE, "sentinel_kwargs": {"password": sentinels.sentinel_password}}
    with closing(open_store(url, timeout=5, **options)) as store:
        ran(store, key, "a")
    with closing(open_store(sentinels.url, timeout=5)) as store:
        assert refused(store, key, "a", token="late copy").reason is Reason.FINISHED

    with pytest.raises(ConfigurationError, match=r"redis\+sentinel://host:26379/mymaster"):
        open_store(url)


def test_celerys_broker_by_sentinels_is_the_store(sentinels: SentinelGroup, key: str) -> None:
    """An app whose broker is behind sentinels keeps its leases there, without being told anything."""
    from celery import Celery

    from singleflight.celery import install

    app = Celery("shop", set_as_current=False)
    app.conf.broker_url = ";".join(
        f"sentinel://:{quote(sentinels.password)}@{one}/0" for one in sentinels.nodes
    )
    app.conf.broker_transport_options = {
        "master_name": SERVICE,
        "sentinel_kwargs": {"password": sentinels.sentinel_password},
        "global_keyprefix": "shop:",
    }
    install(app, store_timeout=5)
    ran(app.singleflight.leases.store, key, "a")
    app.singleflight.leases.store.close()

    assert app.singleflight.prefix == "shop:singleflight"
    with closing(open_store(sentinels.url, timeout=5)) as store:
        assert look(store, key).record.run_id == "a"


@pytest.mark.parametrize("decode", [False, True])
def test_scenario_49_a_client_behind_sentinels_will_do(
    sentinels: SentinelGroup, key: str, decode: bool
) -> None:
    """A store made of a client that sentinels gave uses the same sentinels, whatever that client decodes."""
    own = {"password": sentinels.sentinel_password}
    nodes = [("127.0.0.1", one.port) for one in sentinels.sentinels]
    asked = Sentinel(nodes, sentinel_kwargs=own, password=sentinels.password, decode_responses=decode)
    client = asked.master_for(SERVICE)
    try:
        with closing(RedisStore.from_client(client, timeout=5)) as store:
            assert isinstance(store._connections.topology, Sentinels)
            ran(store, key, "a")
        assert client.exists(key)
        with pytest.raises(ConfigurationError, match="on a replica"):
            RedisStore.from_client(asked.slave_for(SERVICE))
    finally:
        client.close()
        for one in asked.sentinels:
            one.close()


@pytest.mark.parametrize("decode", [False, True])
def test_scenario_49_a_client_of_a_cluster_will_do(cluster: ValkeyCluster, key: str, decode: bool) -> None:
    """A store made of a client of a cluster finds all its nodes, whatever that client decodes."""
    node = ClusterNode("127.0.0.1", cluster.nodes[0].port)
    client = redis.RedisCluster(startup_nodes=[node], decode_responses=decode)
    try:
        with closing(RedisStore.from_client(client, timeout=5)) as store:
            assert isinstance(store._connections.topology, Cluster)
            for number in range(9):
                ran(store, f"{key[:-1]}{number}}}", "a")
            assert renew(store, key, "a", granted(store, key, "a")) is Renewed.RENEWED
        assert client.exists(key)
    finally:
        client.close()


def test_scenario_41_a_failover_under_load_is_survived(key: str) -> None:
    """An orderly hand-over costs no request; through a primary's sudden death no two hold the lease."""
    numbers, over, lock, done = count(), threading.Event(), threading.Lock(), count()

    def work() -> None:
        while not over.is_set():
            run = f"run-{next(numbers)}"
            try:
                answer = claim(store, key, run)
                # A claim whose write the failover lost is told of by its renewal.
                if isinstance(answer, Granted) and renew(store, key, run, answer) is Renewed.RENEWED:
                    assert lock.acquire(blocking=False), "two hold the lease"
                    lock.release()
                    next(done)
                elif not isinstance(answer, Granted):
                    continue
            except StoreUnavailable:
                pass  # it may have been granted all the same
            give_back(run)

    def give_back(run: str) -> None:
        while not over.is_set():
            with suppress(StoreUnavailable):
                release(store, key, run)
                return

    with SentinelGroup() as group, closing(open_store(group.url, timeout=1)) as store:
        first, second = group.primary(), group.replica()
        grant = granted(store, f"{key}quiet", "a")
        group.asked(group.sentinels[0]).execute_command("SENTINEL", "FAILOVER", SERVICE)
        until(lambda: group.all_name(second), 60, "the hand-over")
        # The sentinels would do so ten seconds later.
        group.client(first).replicaof("127.0.0.1", second.port)
        until(lambda: group.replicates(first), 60, "the old primary to follow the new one")
        assert refused(store, f"{key}quiet", "b").reason is Reason.RUNNING
        assert renew(store, f"{key}quiet", "a", grant) is Renewed.RENEWED

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work) for _ in range(4)]
            try:
                until(lambda: next(done) > 20, 60, "work before the death", every=0.2)
                second.kill()
                until(lambda: group.primary() is first, 60, "the promotion")
                seen = next(done)
                until(lambda: next(done) > seen + 50, 60, "work after the promotion", every=0.2)
            finally:
                over.set()
            for each in working:
                each.result()


def test_scenario_41_leases_that_a_promotion_lost_are_told(key: str) -> None:
    """A replica that was promoted without the leases: who renews first has it, and the other is told."""
    taken, kept = key, f"{key[:-1]}-kept}}"
    with SentinelGroup("secret") as group, closing(open_store(group.url, timeout=5)) as store:
        primary, replica = group.primary(), group.replica()
        group.client(replica).config_set("masterauth", "wrong")
        group.client(primary).execute_command("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: group.client(primary).info("replication")["connected_slaves"] == 0, what="the cut")
        grants = [granted(store, each, "a") for each in (taken, kept)]
        primary.kill()
        until(lambda: group.all_name(replica), 60, "the promotion")
        until(lambda: group.client(replica).info("replication")["role"] == "master", 60, "the new primary")

        assert isinstance(claim_soon(store, taken, "b"), Granted)
        answers = store.renew(
            [
                Renewal(each, "a", 0, "token-a-0", grant.fence, 60_000)
                for each, grant in zip((taken, kept), grants, strict=True)
            ]
        )

        assert answers == [Renewed.LOST, Renewed.RESTORED]
        assert refused(store, kept, "b").reason is Reason.RUNNING


def claim_soon(store: RedisStore, key: str, run: str) -> object:
    """Claim as soon as the store is there again."""

    def answer() -> object:
        try:
            return claim(store, key, run)
        except StoreUnavailable:
            return None

    return until(answer, 60, "the store to be back")


def test_sentinels_that_do_not_answer_are_told_without_their_password(key: str) -> None:
    """What is wrong with each is told; redis-py's description of them, where a password may be, is not."""
    nodes = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    url = f"redis+sentinel://:sesame@{nodes}/leases?sentinel_password=simsim"
    with (
        closing(open_store(url)) as store,
        pytest.raises(StoreUnavailable, match=r"No master found for 'leases' \(.*ConnectionError") as trouble,
    ):
        claim(store, key, "a")

    shown = "".join(traceback.format_exception(trouble.value))
    assert not re.search("sesame|simsim|ConnectionPool|Redis\\(", shown)


def test_a_primary_that_loads_its_data_is_waited_for(key: str) -> None:
    """Sentinels name a primary that has started again and still reads its data: said so, then it is there."""
    with SentinelGroup() as group, closing(open_store(group.url, timeout=1)) as store:
        primary = group.primary()
        granted(store, key, "a")
        group.client(primary).mset({f"filling:{number}": "" for number in range(6000)})
        group.client(primary).save()
        # Half a millisecond for each key: three seconds, in which it answers "LOADING".
        primary._arguments += ("--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024")
        primary.restart()

        with pytest.raises(StoreUnavailable, match="is loading its data"):
            claim(store, key, "b")
        assert group.primary() is primary
        answer = claim_soon(store, key, "b")
        assert isinstance(answer, Busy), "the lease was in the data"
        assert answer.run_id == "a"


def test_a_replica_that_has_lost_its_primary_is_left_when_there_is_another(key: str) -> None:
    """While sentinels name such a replica, that is said; when they name another server, that is asked."""
    with SentinelGroup() as group, closing(open_store(group.url, timeout=1)) as store:
        first, second = group.primary(), group.replica()
        granted(store, key, "a")
        until(lambda: group.client(second).exists(key), what="the replica to have the lease")
        for sentinel in group.sentinels[1:]:
            sentinel.pause()  # one alone promotes nobody
        group.client(first).config_set("replica-serve-stale-data", "no")
        group.client(first).replicaof("127.0.0.1", free_port())

        with pytest.raises(StoreUnavailable, match="has lost its primary"):
            claim(store, key, "b")
        group.client(second).replicaof("NO", "ONE")
        first.kill()
        for sentinel in group.sentinels[1:]:
            sentinel.resume()
        answer = claim_soon(store, key, "b")
        assert isinstance(answer, Busy)
        assert answer.run_id == "a"


def test_least_replicas_are_waited_for(key: str) -> None:
    """With min_replicas a grant or renewal that no replica has is no success; a refusal costs no more."""
    with (
        ValkeyServer("--repl-diskless-sync-delay", "0") as primary,
        ValkeyServer("--replicaof", f"127.0.0.1 {primary.port}") as replica,
        closing(client_of(replica)) as client,
        closing(open_store(f"{primary.url}?min_replicas=1", timeout=1)) as store,
    ):
        until(lambda: client.info("replication")["master_link_status"] == "up", 30, "the replica")
        grant = granted(store, key, "a")
        assert renew(store, key, "a", grant) is Renewed.RENEWED
        replica.pause()
        try:
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas have it"):
                renew(store, key, "a", grant)
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas have it"):
                claim(store, f"{key}2", "b")
            assert release(store, key, "a") is True
        finally:
            replica.resume()

        assert isinstance(claim_soon(store, f"{key}2", "b"), Granted)


def test_celerys_broker_by_tls_is_the_store(tls: TlsServer, key: str) -> None:
    """An app whose broker is reached by TLS keeps its leases there with the certificates it already has."""
    from celery import Celery

    from singleflight.celery import install

    limit(tls, "celery")
    app = Celery("shop", set_as_current=False, broker=f"redis://celery:secret@127.0.0.1:{tls.port}/0")
    app.conf.broker_use_ssl = {**tls.certificates.for_client, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    install(app, store_timeout=5)
    ran(app.singleflight.leases.store, key, "a")
    app.singleflight.leases.store.close()

    with redis.Redis(unix_socket_path=str(tls.socket_path)) as admin:
        assert admin.exists(key)


def test_celerys_credential_provider_is_asked(redis7: ValkeyServer, key: str) -> None:
    """An app whose broker asks an object for user and password has its leases ask it, too."""
    from celery import Celery

    from singleflight.celery import install

    limit(redis7, "rotating")
    url = f"redis://127.0.0.1:{redis7.port}/0?credential_provider={Rotating.__module__}.Rotating"
    app = Celery("shop", set_as_current=False, broker=url)
    if not hasattr(app.connection_for_write(), "credential_provider"):
        pytest.skip("kombu knows no credential providers before 5.5; type: pip install 'celery>=5.5'")
    install(app, store_timeout=5)

    ran(app.singleflight.leases.store, key, "a")
    app.singleflight.leases.store.close()


def test_an_unknown_certificate_is_permanent(tls: TlsServer, tmp_path: Path, key: str) -> None:
    """A server whose certificate another authority signed is refused for good, and so is a client's."""
    stranger = Certificates(tmp_path)
    limit(tls, "limited")
    url = tls.url_of("limited", "secret", ssl_ca_certs=stranger.path("ca.crt"))
    with closing(open_store(url, timeout=5)) as store, pytest.raises(ConfigurationError, match="certificate"):
        claim(store, key, "a")
    options = {"ssl_certfile": stranger.path("client.crt"), "ssl_keyfile": stranger.path("client.key")}
    url = tls.url_of("limited", "secret", **options)
    with closing(open_store(url, timeout=5)) as store, pytest.raises(SingleflightError):
        claim(store, key, "a")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+cluster://a:7000,b:7001/3", "no database '3'"),
        ("redis+cluster://a:x", "cannot be read"),
        ("redis://a/nightly", "'nightly' in the URL .* is no number"),
        ("rediss://a:1//x?db=3", "'x' in the URL .* is no number"),
        ("redis+sentinel://a:26379", "not whose primary"),
        ("redis+sentinel://a/leases?sentinel_pasword=x", "pasword is not an option"),
        ("redis://a?min_replicas=some", "min_replicas='some' must be a whole number"),
    ],
)
def test_a_wrong_url_is_refused_with_its_remedy(url: str, message: str) -> None:
    """What a URL cannot mean is refused when the store is opened, before anything is connected."""
    with pytest.raises(ConfigurationError, match=message):
        open_store(url)


def test_urls_name_their_places() -> None:
    """Hosts, ports, users, the service and the database are read from each kind of URL."""
    cluster = topology_from_url("rediss+cluster://user:p%40ss@a:7000,[::1],c/?ssl_ca_certs=/ca")
    behind = topology_from_url("rediss+sentinel://:pw@a,b:1/leases/3?sentinel_password=own&ssl_ca_certs=/ca")

    assert isinstance(cluster, Cluster)
    assert cluster.nodes == (("a", 7000), ("::1", 6379), ("c", 6379))
    assert (cluster.options["username"], cluster.options["password"]) == ("user", "p@ss")
    assert cluster.options["connection_class"] is redis.SSLConnection
    assert isinstance(behind, Sentinels)
    assert (behind.nodes, behind.service) == ((("a", 26379), ("b", 1)), "leases")
    assert (behind.options["password"], behind.options["db"]) == ("pw", 3)
    assert behind.sentinel_options["password"] == "own"
    assert behind.sentinel_options["connection_class"] is redis.SSLConnection
    assert behind.sentinel_options["ssl_ca_certs"] == "/ca"
