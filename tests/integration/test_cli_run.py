"""`singleflight run` in trouble: it waits, loses its lease, is killed; the command is never on its own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psutil
import pytest
import redis

from singleflight import Busy, Lease, try_lease
from singleflight.keys import lease_key
from singleflight.stores import open_store
from tests.support.bodylog import BodyLog, overlaps
from tests.support.servers import ValkeyServer, missing
from tests.support.waiting import until
from tests.support.wrapper import IGNORES_TERM, PATIENCE, WORKS, Program, gone, logging, waits, with_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from singleflight.stores.base import Store


@pytest.fixture(scope="module")
def shared() -> Iterator[ValkeyServer]:
    """A server that no test stops."""
    with ValkeyServer() as running:
        yield running


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """A server of one test, to be stopped."""
    with ValkeyServer() as running:
        yield running


@pytest.fixture
def log(tmp_path: Path) -> BodyLog:
    """The log that commands write to."""
    return BodyLog(tmp_path / "bodies.log")


@pytest.fixture
def program(shared: ValkeyServer, tmp_path: Path) -> Program:
    """`singleflight run` on the shared server."""
    return with_log(shared, tmp_path)


@pytest.fixture
def store(shared: ValkeyServer) -> Iterator[Store]:
    """The store as the test sees it."""
    opened = open_store(shared.url)
    yield opened
    opened.close()


@pytest.fixture
def key(tmp_path: Path) -> str:
    """The key of this test's lease."""
    return lease_key(tmp_path.name, "lk")


# Waiting


def test_a_waiter_rides_out_an_outage_and_gives_up_after_its_ttl(
    server: ValkeyServer, tmp_path: Path
) -> None:
    """Once the store has answered, it may be away for a ttl; then the waiter ends with 113."""
    program, store = with_log(server, tmp_path), open_store(server.url)
    key = lease_key(tmp_path.name, "lk")
    held = try_lease(server.url, "lk", prefix=tmp_path.name)
    assert isinstance(held, Lease)
    with program.started("--ttl", "60s", "LEASE", "echo", "ran") as patient:
        with program.started("--ttl", "1s", "LEASE", "echo", "ran") as hasty:
            until(lambda: waits(store, key))
            hasty_waits = program.run("-n", "LEASE", "true")
            server.stop()
            code = hasty.wait(PATIENCE)
        server.start()
        output, _ = patient.communicate(timeout=PATIENCE)
    held.release()
    store.close()

    assert hasty_waits.returncode == 111
    assert code == 113
    assert (patient.returncode, output) == (0, "ran\n")


def test_many_waiters_all_run_one_after_the_other(program: Program, log: BodyLog) -> None:
    """Five that wait for one lease all get it, and never two at once."""
    with ExitStack() as stack:
        words = logging(WORKS)
        waiters = [
            stack.enter_context(program.started("LEASE", *words, str(number), "0.1")) for number in range(5)
        ]
        codes = [waiter.wait(PATIENCE) for waiter in waiters]

    assert codes == [0] * 5
    assert sorted(run.run for run in log.runs()) == list("01234")
    assert overlaps(log.runs()) == []


def test_waiters_are_told_in_the_order_in_which_they_came(
    program: Program, shared: ValkeyServer, store: Store, key: str, log: BodyLog
) -> None:
    """Where the store tells those who wait, whoever came first is next."""
    words = logging(WORKS)
    with redis.Redis.from_url(shared.url) as client, program.holding() as holder, ExitStack() as stack:
        waiters = []
        for number in range(4):
            waiters.append(stack.enter_context(program.started("LEASE", *words, str(number), "0")))
            until(lambda: waits(store, key) and client.zcard(f"{key}:line") >= len(waiters) - 1)
        holder.communicate(timeout=PATIENCE)
        codes = [waiter.wait(PATIENCE) for waiter in waiters]

    assert codes == [0] * 4
    assert [run.run for run in log.runs()] == list("0123")


def test_a_waiter_is_not_starved_by_those_who_do_not_wait(program: Program, store: Store, key: str) -> None:
    """After some seconds of waiting, a free lease is refused to whoever has not waited."""
    with ExitStack() as holder, ExitStack() as waiter:
        holder.enter_context(program.holding())
        waiter.enter_context(program.started("LEASE", "echo", "ran"))
        until(lambda: (look := store.peek(key)) is not None and look.record.first)
        holder.close()  # the lease is free until the waiter asks again, and then it runs
        fresh = try_lease(store, "lk", prefix=key.partition(":")[0])

    assert isinstance(fresh, Busy)


# The lease


def test_an_evicted_command_is_ended(program: Program, store: Store, key: str, log: BodyLog) -> None:
    """When the lease is lost, the command and its children are ended, also those that ignore TERM: 112."""
    fork = "import os\nif os.fork() == 0: signal.pause()\n"
    with program.started(
        "--ttl", "1.5", "LEASE", *logging(IGNORES_TERM + fork + WORKS), "1", "60"
    ) as process:
        until(log.runs)
        family = psutil.Process(process.pid).children(recursive=True)
        store.evict(key)
        _, complaints = process.communicate(timeout=PATIENCE)

    assert process.returncode == 112
    assert len(family) >= 2
    assert all(gone(member.pid) for member in family)
    assert "could not be trusted any more" in complaints
    assert "Traceback" not in complaints


def test_without_a_store_the_command_ends_before_anybody_else_can_start(
    server: ValkeyServer, tmp_path: Path, log: BodyLog
) -> None:
    """A store that falls silent: the command, which ignores TERM, is dead before its lease lapses."""
    program = with_log(server, tmp_path)
    with program.started("--ttl", "2", "LEASE", *logging(IGNORES_TERM + WORKS), "first", "60") as first:
        until(log.runs)
        server.pause()
        code = first.wait(PATIENCE)
        server.resume()
        second = program.run("LEASE", *logging(WORKS), "second", "0")

    assert (code, second.returncode) == (112, 0)
    assert [run.run for run in log.runs()] == ["first", "second"]
    assert overlaps(log.runs()) == []


def test_a_short_outage_is_not_noticed(server: ValkeyServer, tmp_path: Path, log: BodyLog) -> None:
    """A store that comes back in time costs the command nothing."""
    program = with_log(server, tmp_path)
    with program.started("--ttl", "6", "LEASE", *logging(WORKS), "1", "4") as process:
        until(log.runs)
        server.pause()
        time.sleep(1.5)
        server.resume()
        code = process.wait(PATIENCE)

    assert code == 0


def test_children_in_the_background_do_not_keep_the_lease(program: Program) -> None:
    """When the command has ended, so has the lease; what it left running may run on."""
    child = program.run("LEASE", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    pid = int(child.stdout)
    try:
        again = program.run("-n", "LEASE", "true")
        alive = not gone(pid)
    finally:
        os.kill(pid, signal.SIGKILL)

    assert again.returncode == 0
    assert alive


def test_a_command_that_cannot_start_uses_up_nothing(program: Program) -> None:
    """The window, and a planned time, are still there for a host where the command exists."""
    words = ("-n", "--window", "1h", "--occurrence", "2026-01-31T06:00Z", "LEASE")
    missing_one = program.run(*words, "/no/such/command")
    there = program.run(*words, "true")
    again = program.run("-n", "--window", "1h", "LEASE", "true")

    assert (missing_one.returncode, there.returncode, again.returncode) == (127, 0, 111)
    assert "window" in again.stderr


def test_a_planned_time_that_began_elsewhere_keeps_its_window(program: Program, log: BodyLog) -> None:
    """Its host dies at work, and another one cannot start it: the next planned time is still too soon."""
    first, second = (
        ("--ttl", "1", "--window", "1h", "--occurrence", "2026-01-31T06:00Z", "LEASE"),
        "@1769839260",
    )
    with program.started(*first, *logging(WORKS), "first", "60") as killed:
        until(log.runs)
        killed.kill()
        elsewhere = program.run(*first, "/no/such/command")
    early = program.run("-n", "--window", "1h", "--occurrence", second, "LEASE", "true")

    assert (elsewhere.returncode, early.returncode) == (127, 111)
    assert "window" in early.stderr


def test_a_lease_is_shared_with_python(program: Program, shared: ValkeyServer, tmp_path: Path) -> None:
    """`try_lease` of the same name meets the command, and the command meets it."""
    with program.holding() as holder:
        refused = try_lease(shared.url, "lk", prefix=tmp_path.name)
        holder.communicate(timeout=PATIENCE)
    held = try_lease(shared.url, "lk", prefix=tmp_path.name)
    assert isinstance(held, Lease)
    code = program.run("-n", "LEASE", "true").returncode
    held.release()

    assert isinstance(refused, Busy)
    assert code == 111


# Planned times


def test_a_planned_time_is_run_once_however_it_is_written(program: Program) -> None:
    """The same instant in another zone is the same run; the next instant is another one."""
    spellings = ["2026-01-31T06:00Z", "2026-01-31T07:00:00+01:00", "@1769839200", "2026-01-31T06:01Z"]
    outputs = [program.run("-x", "--occurrence", when, "LEASE", "echo", "ran").stdout for when in spellings]

    assert outputs == ["ran\n", "", "", "ran\n"]


def test_a_planned_time_that_failed_has_been_run(program: Program) -> None:
    """Once is once; what to do about a failure is the command's business."""
    words = ("--occurrence", "2026-01-31T06:00Z", "LEASE", "sh", "-c", "exit 3")

    assert [program.run(*words).returncode for _ in range(2)] == [3, 111]


def test_a_planned_time_is_taken_over_from_a_host_that_died(program: Program, log: BodyLog) -> None:
    """Another host that waits for the same planned time does it, once the dead one's lease has lapsed."""
    words = ("--ttl", "2", "--occurrence", "2026-01-31T06:00Z", "LEASE")
    with program.started(*words, *logging(WORKS), "first", "60") as first:
        until(log.runs)
        with program.started(*words, *logging(WORKS), "second", "0") as second:
            first.kill()
            code = second.wait(PATIENCE)
    third = program.run(*words, *logging(WORKS), "third", "0")

    assert (code, third.returncode) == (0, 111)
    assert [run.run for run in log.runs()] == ["first", "second"]


def test_a_planned_time_older_than_all_that_is_known_is_not_run(
    program: Program, shared: ValkeyServer, tmp_path: Path
) -> None:
    """A host that comes when the store has forgotten whether a time was run does not run it again."""
    program.run("--occurrence", "@1769839200", "LEASE", "true")
    for number in range(1, 65):
        run = f"{_iso(1769839200 + 60 * number)}"
        lease = try_lease(shared.url, "lk", prefix=tmp_path.name, run_id=run)
        assert isinstance(lease, Lease)
        lease.release()
    late = program.run("--occurrence", "@1769839200", "LEASE", "echo", "ran")
    newest = program.run("--occurrence", "@1769853600", "LEASE", "echo", "ran")

    assert (late.returncode, late.stdout) == (111, "")
    assert newest.returncode == 0


def _iso(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat()


# What passes through


def test_the_environment_passes_through(program: Program, shared: ValkeyServer, key: str) -> None:
    """The command gets what the wrapper got, plus key and fence, and nothing that Python adds."""
    env = {"PATH": os.environ["PATH"], "SINGLEFLIGHT_URL": shared.url, "WORD": "a=b\nc"}
    prefix = key.partition(":")[0]
    bare = Program(program.argv, program.lease, env)
    done = bare.run("--prefix", prefix, "LEASE", "env", "-0")
    lines = set(done.stdout.split("\0")) - {""}

    assert {f"{name}={value}" for name, value in env.items()} < lines
    assert {line.partition("=")[0] for line in lines} == {*env, "SINGLEFLIGHT_KEY", "SINGLEFLIGHT_FENCE"}
    assert f"SINGLEFLIGHT_KEY={key}" in lines


def test_as_process_1_it_reaps_orphans_and_ends_on_term(program: Program) -> None:
    """As a container's first process it collects orphans, and TERM, which the kernel would drop, ends it."""
    if shutil.which("unshare") is None:
        missing("unshare", "sudo apt-get install util-linux")
    if subprocess.run(["unshare", "-Urpf", "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this kernel, or the container that the tests are in, allows no namespaces")
    script = (
        "(sh -c 'sleep 0.2 & :' &); sleep 1; grep -l '^State:.Z' /proc/[0-9]*/status; echo pid $PPID;"
        "trap 'exit 6' TERM; echo ready; while :; do sleep 0.02; done"
    )
    words = [
        "unshare",
        "-Urpf",
        "--mount-proc",
        "--kill-child",
        *program.command("LEASE", "sh", "-c", script),
    ]
    with Program((), program.lease, program.env).started(*words) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        psutil.Process(process.pid).children()[0].send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)

    assert lines == ["pid 1\n", "ready\n"]
    assert code == 6


# Five hosts

ROUNDS = int(os.environ.get("SINGLEFLIGHT_CRON", "1"))


@pytest.mark.timeout(120 + 30 * ROUNDS)
@pytest.mark.parametrize("letters", [["-N"], ["-nx"]])
def test_five_hosts_run_each_planned_time_once(program: Program, log: BodyLog, letters: list[str]) -> None:
    """The same cron line on five hosts, however far apart they start: one run of each planned time.

    With -n, those who come while it runs give up; with -N they wait, in case that the one who runs it dies.
    SINGLEFLIGHT_CRON=100 does it as often, over 3 seconds each.
    """
    spread = 3.0 if ROUNDS > 1 else 0.5
    chance = random.Random(1)  # the spread, not the outcome, is the same each time
    for number in range(ROUNDS):
        words = logging("with log.body('lk', sys.argv[1]) as body: body.work(0.2)")
        line = program.command(*letters, "--occurrence", f"@{60 * number}", "LEASE", *words, str(number))
        with ExitStack() as stack:
            hosts = [
                stack.enter_context(
                    Program((), "", program.env).started(
                        "sh", "-c", f'sleep {chance.uniform(0, spread):.2f}; exec "$@"', "sh", *line
                    )
                )
                for _ in range(5)
            ]
            codes = sorted(host.wait(PATIENCE) for host in hosts)
        assert codes == ([0, 111, 111, 111, 111] if letters == ["-N"] else [0] * 5)

    print(f"{ROUNDS} planned times on 5 hosts with {letters[0]}: {len(log.runs())} runs")  # noqa: T201
    assert [run.run for run in log.runs()] == [str(number) for number in range(ROUNDS)]
