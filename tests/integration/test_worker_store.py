"""The store away, hanging or wrong: what `on_store_error`, `on_lost`, `enabled` and `max_hold` do."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import ConfigurationError, LeaseLost, Singleton, Skipped, StoreUnavailable
from tests.integration import worker_app
from tests.support.bodylog import overlaps
from tests.support.proxy import FaultProxy, Mode
from tests.support.rig import Rig
from tests.support.servers import ValkeyServer
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, FaultProxy]]:
    """Run one worker whose store is behind a proxy that can fail."""
    with (
        ValkeyServer() as store,
        FaultProxy(store.port) as proxy,
        Rig(tmp_path_factory.mktemp("store"), store=proxy.url, store_server=store) as rig,
    ):
        rig.start(1, concurrency=4)
        yield rig, proxy
        assert not rig.endless_keys()


@pytest.fixture
def rig(servers: tuple[Rig, FaultProxy]) -> Iterator[Rig]:
    """Return the rig, with a store that is healthy again after the test and trusted by the worker."""
    rig, proxy = servers
    yield rig
    proxy.mode = Mode.PASS
    # A worker leaves a store alone for five seconds after a failure; runs that wait for it come back then.
    probes = [rig.send("probe", f"healthy-{time.monotonic()}-{n}") for n in range(4)]
    assert rig.states(probes) == ["SUCCESS"] * 4


@pytest.fixture(params=["hang", "no reply", "refuse"])
def outage(
    request: pytest.FixtureRequest, servers: tuple[Rig, FaultProxy], rig: Rig
) -> Iterator[Callable[[], None]]:
    """Take the store away in one of three ways; the returned function brings it back."""
    del rig
    proxy = servers[1]
    if request.param == "refuse":
        proxy.refuse()
    else:
        proxy.mode = Mode.HOLD if request.param == "hang" else Mode.DROP_REPLIES

    def over() -> None:
        proxy.mode = Mode.PASS
        if request.param == "refuse" and not back:
            back.append(True)
            proxy.accept_again()
        proxy.reset()

    back: list[bool] = []
    yield over
    over()


def test_every_policy_holds_while_the_store_is_away(
    rig: Rig, outage: Callable[[], None], request: pytest.FixtureRequest
) -> None:
    """Defer comes back once it can, run runs, skip skips, raise fails; none takes it for a conflict."""
    how = request.node.callspec.params["outage"]
    policies = ("run", "skip", "raise", "defer")
    results = {
        policy: rig.send("probe", f"{how}-{policy}", {"singleton": Singleton(on_store_error=policy)})
        for policy in policies
    }

    assert results["run"].get(timeout=15) == results["run"].id
    with pytest.raises(Skipped, match="store was away"):
        results["skip"].get(timeout=15)
    with pytest.raises(StoreUnavailable):
        results["raise"].get(timeout=15)
    until(lambda: results["defer"].id in "".join(w.logs() for w in rig.workers), what="the receipt")
    assert not rig.runs(f"{how}-defer")
    outage()
    assert results["defer"].get(timeout=30) == results["defer"].id
    assert [len(rig.runs(f"{how}-{policy}")) for policy in policies] == [1, 0, 0, 1]
    assert rig.said(f"{results['run'].id} unguarded")


def test_broken_connections_lose_and_double_nothing(rig: Rig, servers: tuple[Rig, FaultProxy]) -> None:
    """Connections that are reset all the time: each of ten runs of one key still runs once, one at a time."""
    options = {"singleton": Singleton(on_conflict="defer")}
    results = [rig.send("probe", "reset", options, seconds=0.1) for _ in range(10)]
    until(lambda: servers[1].reset() or all(r.ready() for r in results), 60, "the runs", every=0.05)

    assert rig.states(results) == ["SUCCESS"] * 10
    assert sorted(run.run for run in rig.runs("reset")) == sorted(result.id for result in results)
    assert not overlaps(rig.runs("reset"))


def test_a_wrong_password_fails_the_run_whatever_the_policy_says(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A permanent error is no outage: on_store_error="run" does not hide it; the text has no password."""
    with ValkeyServer("--requirepass", "right") as store:
        url = store.url.replace("redis://", "redis://:wrong@")
        with Rig(tmp_path_factory.mktemp("password"), store=url) as rig:
            rig.start(1, concurrency=1)
            result = rig.send("probe", "password", {"singleton": Singleton(on_store_error="run")})

            with pytest.raises(ConfigurationError, match="password refused") as caught:
                result.get(timeout=15)
            assert "wrong@" not in str(caught.value)
            assert not rig.runs("password")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_that_loses_its_lease_is_aborted_if_it_says_so(
    rig: Rig, servers: tuple[Rig, FaultProxy], pool: str
) -> None:
    """on_lost="abort" raises LeaseLost in the body: even in a system call in a prefork child."""
    proxy = servers[1]
    if pool == "threads":
        rig.worker(pool="threads", concurrency=2, args=["-Q", "threads"])
    queue = {"queue": "threads"} if pool == "threads" else {}
    key = f"abort-{pool}"
    # The main thread of a prefork child sits in one long sleep; other threads see the error between two.
    how = {"block": 60.0} if pool == "prefork" else {"seconds": 60.0}
    aborted = rig.send("probe", key, {**queue, "singleton": Singleton(on_lost="abort", ttl=1)}, **how)
    rig.wait_start(key)
    proxy.refuse()
    try:
        with pytest.raises(LeaseLost):
            aborted.get(timeout=15)
    finally:
        proxy.accept_again()

    (run,) = rig.runs(key)
    assert run.how == "LeaseLost"
    assert run.last_seen - run.started < 10


def test_a_run_inside_another_lease_is_aborted_when_its_own_is_lost(rig: Rig) -> None:
    """on_lost="abort" looks at the task's own lease, not at the innermost one of a block in its body."""
    gate = rig.folder / "nested-gate"
    options = {"singleton": Singleton(on_lost="abort", ttl=1)}
    aborted = rig.send("probe", "abort-nested", options, gate=str(gate), inside="inner")
    rig.wait_start("abort-nested")
    rig.evict(aborted.id)

    assert rig.states([aborted], timeout=30) == ["FAILURE"]
    assert isinstance(aborted.result, LeaseLost)
    assert [run.how for run in rig.runs("abort-nested")] == ["LeaseLost"]


def test_a_run_that_loses_its_lease_goes_on_with_a_warning_otherwise(
    rig: Rig, servers: tuple[Rig, FaultProxy]
) -> None:
    """on_lost="warn": the body finishes, its result stands, the log warns, the lease is not held."""
    proxy, gate = servers[1], rig.folder / "warn-gate"
    result = rig.send("probe", "warn", {"singleton": Singleton(ttl=1)}, gate=str(gate), then="lease")
    rig.wait_start("warn")
    proxy.refuse()
    until(lambda: rig.said(f"{result.id} lost"), what="the warning")
    gate.touch()
    try:
        assert result.get(timeout=30)["held"] is False
    finally:
        proxy.accept_again()


def test_a_hung_run_is_no_longer_renewed_after_max_hold(rig: Rig) -> None:
    """After max_hold the lease lapses by itself and the next run starts, although the first still works."""
    gate = rig.folder / "hung-gate"
    hung = rig.send("probe", "hung", {"singleton": Singleton(ttl=1, max_hold=1)}, gate=str(gate))
    rig.wait_start("hung")
    began = time.monotonic()
    after = rig.send("probe", "hung", {"singleton": Singleton(ttl=1, on_conflict="defer")})

    assert after.get(timeout=15) == after.id
    assert time.monotonic() - began >= 1
    assert rig.said("max_hold is over")
    gate.touch()
    assert hung.get(timeout=30) == hung.id
    assert len(overlaps(rig.runs("hung"))) == 1


def test_an_uncontended_run_costs_two_requests(rig: Rig) -> None:
    """Claim and release are one script call each; nothing else goes to the store without contention."""
    warm = [rig.send("probe", f"warm-{n}") for n in range(20)]
    rig.states(warm)
    until(lambda: not any(rig.held(r.id) for r in warm), SOON, "the last release")
    with rig.store_client as client, rig.store_client as watching, watching.monitor() as seen:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        results = [rig.send("probe", f"cost-{n}") for n in range(50)]
        rig.states(results)
        until(
            lambda: client.info("commandstats")["cmdstat_evalsha"]["calls"] >= before + 100, what="releases"
        )
        time.sleep(1)  # for whatever should not be
        client.echo("over")
        asked = Counter(requests_until("ECHO", seen))
    ids = {result.id for result in results}
    own = {key for key, record in rig.records().items() if record.run_id in ids}

    assert len(own) == 50
    assert all(asked[("EVALSHA", key)] == 2 for key in own), asked
    # The count above; a process may connect meanwhile, and leases of other tests be renewed.
    assert {command for command, _ in asked} <= {"EVALSHA", "HELLO", "CLIENT", "INFO"}


def requests_until(end: str, monitor: Any) -> Iterator[tuple[str, str]]:
    """Yield command and key of each request that a server gets, less what its scripts do."""
    for one in monitor.listen():
        command, *words = one["command"].split()
        if command == end:
            return
        if one["client_type"] != "lua":
            yield command, words[2] if command.startswith("EVAL") else " ".join(words)


def test_nothing_is_asked_of_the_store_where_singleflight_is_off(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """enabled=False: all runs overlap, and no store is needed."""
    with Rig(tmp_path_factory.mktemp("off"), conf={"singleflight_enabled": False}) as rig:
        rig.start(1, concurrency=2)
        rig.store.kill()
        gate = rig.folder / "gate"
        results = [rig.send("probe", "off", gate=str(gate)) for _ in range(2)]
        rig.wait_start("off", 2)
        gate.touch()

        assert rig.states(results) == ["SUCCESS"] * 2
        assert len(overlaps(rig.runs("off"))) == 1


def test_everything_runs_while_singleflight_observes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """enabled="observe": what would have been skipped runs and is logged; an outage stops nothing."""
    with Rig(tmp_path_factory.mktemp("observe"), install={"enabled": "observe"}) as rig:
        rig.start(1, concurrency=3)
        gate = rig.folder / "gate"
        results = [rig.send("probe", "observe", gate=str(gate)) for _ in range(2)]
        rig.wait_start("observe", 2)
        assert rig.said("observed")
        rig.store.kill()
        away = rig.send("probe", "observe", {"singleton": Singleton(on_store_error="raise")}, gate=str(gate))
        rig.wait_start("observe", 3)
        gate.touch()

        assert rig.states([*results, away]) == ["SUCCESS"] * 3


def test_a_worker_without_a_store_refuses_to_start(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A broker that keeps no leases and no store named: the worker ends with the remedy, and runs nothing."""
    with Rig(tmp_path_factory.mktemp("none"), store="") as rig:
        folder = rig.folder / "broker"
        folder.mkdir()
        conf = (
            f'{{"broker_transport_options": {{"data_folder_in": "{folder}", "data_folder_out": "{folder}"}}}}'
        )
        env = {"CELERY_BROKER_URL": "filesystem://", worker_app.CONF: conf}
        worker = rig.worker(concurrency=1, env=env, ready=False)

        assert worker.child.wait() != 0
        assert "name a store, such as singleflight_url='redis://host:6379/0'" in worker.logs()


def test_the_log_warns_at_start_of_what_is_dangerous(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Early acknowledgement, and a visibility timeout below a time limit or a ttl, are said once each."""
    conf = {"broker_transport_options": {"visibility_timeout": 2}, "task_time_limit": 60}
    with Rig(tmp_path_factory.mktemp("warnings"), conf=conf) as rig:
        log = rig.start(1, concurrency=1).workers[0].logs()

    assert "probe" in log.partition("acknowledged before they run")[0].splitlines()[-1]
    assert "late may run 60 s but the broker delivers it again after 2 s" in log
    assert "late: ttl 2 s is not below the visibility timeout of 2 s" in log
