"""`ls`, `show`, `evict` and `watch` on a real server, as operators type them."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Lease, lease, try_lease
from singleflight.events import short_key
from singleflight.key_rules import KeyRule
from singleflight.keys import lease_key
from singleflight.lease import Holder, Outcome
from singleflight.stores import open_store
from singleflight.stores.base import Claim, Release
from singleflight.stores.redis import RedisStore
from tests.support.servers import ValkeyServer
from tests.support.shell import CTRL_C, PROMPT, Shell
from tests.support.wrapper import PATIENCE, SINGLEFLIGHT, Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A running server."""
    with ValkeyServer() as running:
        yield running


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """What this test's keys start with."""
    return tmp_path.name


@pytest.fixture
def program(server: ValkeyServer, prefix: str) -> Program:
    """The command line on this test's keys."""
    env = {**os.environ, "SINGLEFLIGHT_URL": server.url, "SINGLEFLIGHT_PREFIX": prefix}
    return Program((str(SINGLEFLIGHT),), server.url, env)


@pytest.fixture
def held(server: ValkeyServer, prefix: str) -> Iterator[Lease]:
    """A lease called nightly, that somebody else was refused once."""
    lease = try_lease(server.url, "nightly", prefix=prefix, run_id="monday", window=600)
    assert isinstance(lease, Lease)
    try_lease(server.url, "nightly", prefix=prefix)
    yield lease
    lease.release()


def objects(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_ls_shows_what_goes_on(program: Program, held: Lease) -> None:
    """Key, holder and refusals of a held lease, in lines of 80 columns; what is free is only counted."""
    program.run("run", "imports", "true")
    done = program.run("ls", "LEASE")
    lines = done.stdout.splitlines()

    assert lines[0] == f"running  {short_key(held.key)}"
    assert f"pid {os.getpid()} for " in lines[1]
    assert lines[2].startswith("         1 refused, last ")
    assert max(map(len, lines)) <= 80
    assert "1 free (--all shows them)" in done.stderr


def test_ls_of_a_prefix_that_nobody_uses_says_so(program: Program) -> None:
    """Nothing held and a wrong prefix look different."""
    done = program.run("ls", "--prefix", "shpo")

    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing is known under the prefix 'shpo'" in done.stderr


def test_ls_as_json_is_one_object_per_key(program: Program, held: Lease) -> None:
    """Scripts get the same facts, with numbers in seconds."""
    (found,) = objects(program.run("ls", "--json"))

    assert (found["key"], found["state"], found["run_id"]) == (held.key, "running", "monday")
    assert (found["pid"], found["refused"], found["refused_reason"]) == (os.getpid(), 1, "running")
    assert 0 < found["time_left"] <= 30
    assert found["fence"] == held.fence


@pytest.mark.parametrize("kind", ["whole key", "short key", "name", "name in the url", "name of a task"])
def test_show_finds_a_key_by_any_of_its_names(
    program: Program, server: ValkeyServer, held: Lease, kind: str
) -> None:
    """A key as `ls` prints it, whole or short, a lease as `run` takes it, or a task."""
    words = {
        "whole key": [server.url, held.key],
        "short key": [server.url, short_key(held.key)],
        "name": ["nightly"],
        "name in the url": [f"{server.url}/nightly"],
        "name of a task": ["nightly", "{}"],
    }[kind]
    (found,) = objects(program.run("show", "--json", *words))

    assert found["key"] == held.key


def test_show_finds_the_key_of_a_tasks_arguments(program: Program, prefix: str) -> None:
    """The arguments that make a key, as JSON, give the key that the task itself has."""

    def call(account_id: int, reason: str = "") -> None:
        """Have the parameters of a task."""

    rule = KeyRule(
        prefix=prefix,
        task="shop.recalculate",
        signature=inspect.signature(call),
        by=("account_id",),
    )
    key = rule.key((7,), {})
    done = program.run("show", "shop.recalculate", '{"account_id": 7}')

    assert key is not None
    assert key in done.stderr


@pytest.fixture
def renders(server: ValkeyServer, prefix: str) -> dict[int, str]:
    """The runs of a task that is keyed by an argument: one is under way, one has ended."""
    function = inspect.signature(lambda document: document)
    rule = KeyRule(prefix=prefix, task="shop.render", signature=function, by=("document",))
    runs = {}
    with closing(open_store(server.url)) as store:
        for document in (7, 8):
            runs[document] = run = str(uuid.uuid4())
            key = rule.key((document,), {})
            assert key is not None
            holder = Holder("shop.render", "worker-1", 7).encode()
            store.claim(Claim(key, run, 0, run, ttl_ms=60_000, holder=holder))
            if document == 8:
                store.release(Release(key, run, 0, run, Outcome.FINISHED))
    return runs


def test_show_lists_the_keys_of_a_task(program: Program, renders: dict[int, str]) -> None:
    """Whoever knows only the task's name finds its keys, also the free ones, and can show one."""
    done = program.run("show", "shop.render")

    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines[::2]] == ["running", "free"]
    assert lines[1][:4] == ["worker-1", "pid", "7", "for"]
    assert "2 keys" in done.stderr
    short = lines[0][1]
    assert f"run          {renders[7]}" in program.run("show", short).stdout
    assert [each["run_id"] for each in objects(program.run("show", "--json", "shop.render"))] == [
        renders[7],
        renders[8],
    ]


def test_show_finds_the_key_of_a_run(program: Program, renders: dict[int, str], server: ValkeyServer) -> None:
    """From a run's id, which is the Celery task's or the Dramatiq message's, to key, task and outcome."""
    shown = program.run("show", renders[8]).stdout

    assert "task         shop.render\n" in shown
    assert "outcome      finished\n" in shown
    assert program.run("show", server.url, renders[8]).stdout.splitlines()[0] == shown.splitlines()[0]


def test_evict_without_anybody_to_ask_needs_yes(program: Program, held: Lease) -> None:
    """Nothing is ended by a script that did not say so."""
    done = program.run("evict", "nightly")

    assert done.returncode == 1
    assert "say --yes" in done.stderr
    assert held.held


def test_evict_tells_what_happens_and_is_logged(
    program: Program, server: ValkeyServer, prefix: str, held: Lease
) -> None:
    """It says that a holder runs and when it learns of it, names who did it, and another run can start."""
    done = program.run("evict", "--yes", "nightly")
    after = try_lease(server.url, "nightly", prefix=prefix)
    kept = held._keeper.renew_now(held) or held.held

    assert done.returncode == 0
    assert "The holder runs, and learns within 10 s" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert f"{short_key(held.key)} evicted by " in done.stderr
    assert "run monday had it" in done.stderr
    assert isinstance(after, Lease)
    assert not kept
    after.release()


def test_evict_frees_whatever_blocks_a_key(program: Program, server: ValkeyServer, prefix: str) -> None:
    """Window and waiting slot too, also where nobody holds it; what was freed is named."""
    store, key = RedisStore(server.url), lease_key(prefix, "blocked")
    with lease(server.url, "blocked", prefix=prefix, window=600):
        pass
    store.queue(key, "purged", ttl_ms=3_600_000, running_too=True)
    done = program.run("evict", "--yes", "blocked")

    assert done.returncode == 0
    assert "its window was closed for 10 min more, run purged waited" in done.stderr
    assert store.queue(key, "next", ttl_ms=1000, running_too=True) is None
    assert isinstance(try_lease(server.url, "blocked", prefix=prefix, run_id="next"), Lease)
    again = program.run("evict", "--yes", "blocked")
    assert "run next had it" in again.stderr
    assert "nothing blocked it" in program.run("evict", "--yes", "blocked").stderr


def test_evict_asks_at_a_terminal(program: Program, held: Lease) -> None:
    """No is no, and yes is yes."""
    with Shell(program.env) as shell:
        shell.type(f"{SINGLEFLIGHT} evict nightly\n")
        shell.read_until("Evict it? [y/N]")
        shell.type("n\n")
        refused = shell.read_until(PROMPT)
        shell.type(f"{SINGLEFLIGHT} evict nightly\n")
        shell.read_until("Evict it? [y/N]")
        shell.type("y\n")
        shell.read_until("evicted by")

    assert "evicted" not in refused
    assert held.key


@pytest.mark.parametrize("command", ["show", "evict"])
def test_a_key_that_nobody_knows_is_one_line(program: Program, command: str) -> None:
    """A misspelt name is no success and no traceback."""
    done = program.run(command, "nightyl")

    assert (done.returncode, done.stdout) == (1, "")
    assert "the store knows nothing of" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["ls", "show", "evict", "watch"])
def test_without_a_store_it_says_what_to_write(command: str) -> None:
    """No URL anywhere is a usage error; a server that is away is one line too."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SINGLEFLIGHT_")}
    nowhere = Program((str(SINGLEFLIGHT),), "", env)
    unnamed = nowhere.run(command)
    name = ["nightly"] if command in ("show", "evict") else []
    away = nowhere.run(command, "redis://127.0.0.1:1/0", *name)

    assert unnamed.returncode == 2
    assert "SINGLEFLIGHT_URL" in unnamed.stderr
    assert away.returncode == 1
    assert "gave no answer" in away.stderr
    assert [len(done.stderr.splitlines()) for done in (unnamed, away)] == [1, 1]


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_watch_is_a_table_that_ctrl_c_ends(program: Program, held: Lease, term: str) -> None:
    """At a terminal of 80 columns it shows the key and its holder, and ends without a traceback."""
    with Shell({**program.env, "TERM": term, "COLUMNS": "80"}) as shell:
        shell.type(f"{SINGLEFLIGHT} watch --every 100ms\n")
        shell.read_until(short_key(held.key))
        shell.type(CTRL_C)
        shown = shell.read_until(PROMPT)

    assert "Traceback" not in shown
    assert "Aborted" not in shown


def test_watch_rides_out_an_outage() -> None:
    """A store that has answered may be away: what was known stays on the screen, and it goes on."""
    with ValkeyServer() as server:
        env = {**os.environ, "SINGLEFLIGHT_URL": server.url, "TERM": "dumb", "COLUMNS": "120"}
        with Shell(env) as shell:
            shell.type(f"{SINGLEFLIGHT} watch --every 100ms\n")
            shell.read_until("0 free")
            server.stop()
            shell.read_until("as it was, for store 127.0.0.1")
            server.start()
            shell.read_until("0 free")
            shell.type(CTRL_C)
            shown = shell.read_until(PROMPT)

    assert "Traceback" not in shown


def test_watch_as_json_tells_what_changes(program: Program, held: Lease) -> None:
    """One line for each key at first, then one for each change."""
    with program.started("watch", "--json", "--every", "50ms") as watcher:
        assert watcher.stdout is not None
        first = json.loads(watcher.stdout.readline())
        held.release()
        second = json.loads(watcher.stdout.readline())
        watcher.send_signal(signal.SIGINT)
        _, complaints = watcher.communicate(timeout=PATIENCE)

    assert [(one["key"], one["state"]) for one in (first, second)] == [
        (held.key, "running"),
        (held.key, "window"),
    ]
    assert complaints == ""


def test_watch_as_json_rides_out_an_outage() -> None:
    """An outage is one line on stderr; what the store forgot meanwhile is told, and the stream goes on."""
    with ValkeyServer() as server:
        program = Program((str(SINGLEFLIGHT),), "", {**os.environ, "SINGLEFLIGHT_URL": server.url})
        lease = try_lease(server.url, "before", prefix="singleflight")
        assert isinstance(lease, Lease)
        lease.release()
        with program.started("watch", "--json", "--every", "50ms") as watcher:
            assert watcher.stdout is not None
            first = json.loads(watcher.stdout.readline())
            server.stop()
            time.sleep(1)
            server.start()
            second = json.loads(watcher.stdout.readline())
            watcher.send_signal(signal.SIGINT)
            _, complaints = watcher.communicate(timeout=PATIENCE)

    assert [one["state"] for one in (first, second)] == ["free", "forgotten"]
    assert len(complaints.splitlines()) == 1
    assert "gave no answer" in complaints


def test_a_reader_that_has_enough_is_no_error(program: Program, server: ValkeyServer, prefix: str) -> None:
    """`ls | head` ends quietly."""
    for number in range(50):
        lease = try_lease(server.url, f"job-{number}", prefix=prefix)
        assert isinstance(lease, Lease)
        lease.release()
    done = subprocess.run(
        ["sh", "-c", f"{SINGLEFLIGHT} ls --all --json | head -n 1"],
        env=program.env, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip

    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
