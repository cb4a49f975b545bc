"""Records are read in one place, and what it says of them."""

from __future__ import annotations

import ast
from pathlib import Path

import singleflight
from singleflight.lease import Outcome, Reason
from singleflight.stores.base import Claim, Release
from singleflight.stores.memory import MemoryStore
from singleflight.stores.view import View
from singleflight.testing import FakeClock

PACKAGE = Path(singleflight.__file__).parent
OF_STORES = {"INFINITE", "Look", "Record", "Run"}
"""What of `singleflight.stores.base` only stores, and the contract that they are held to, may know."""


def test_nobody_outside_of_stores_reads_a_record() -> None:
    """Everybody else asks a `View`, so that a record can change without them."""
    readers = []
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in ("stores", "testing"):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            imported = isinstance(node, ast.ImportFrom) and node.module == "singleflight.stores.base"
            names = {alias.name for alias in node.names} if imported else set()
            field = isinstance(node, ast.Attribute) and node.attr == "record" and id(node) not in called
            if field or names & OF_STORES or (isinstance(node, ast.Attribute) and node.attr == "now_ms"):
                readers.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")

    assert readers == []


def seen(store: MemoryStore) -> View:
    """Look at the key of these tests."""
    return View(store.peek("key"))


def test_a_key_of_which_the_store_knows_nothing_is_free() -> None:
    """No record answers like an empty one."""
    view = seen(MemoryStore())

    assert [view.known, view.running, view.held, view.in_window] == [False] * 4
    assert (view.run_id, view.waiting, view.known_runs) == ("", "", [])
    assert view.in_the_way(running_too=True) is None
    assert (view.started, view.time_left, view.window_left) == (None, None, None)


def test_a_run_is_followed_from_its_grant_to_its_end() -> None:
    """Begun, running, lapsed, between two attempts, over: each is told apart."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)

    store.claim(Claim("key", "run", 0, "token", ttl_ms=30_000))
    assert (seen(store).begun("run"), seen(store).running, seen(store).is_open("token")) == (True, True, True)
    clock.advance(40)
    assert (seen(store).running, seen(store).held) == (False, True)
    store.release(Release("key", "run", 0, "token", Outcome.RETRYING))
    assert (seen(store).between_attempts("run"), seen(store).over("run")) == (True, False)
    assert not seen(store).is_open("token")
    store.claim(Claim("key", "run", 1, "next", ttl_ms=30_000))
    store.release(Release("key", "run", 1, "next", Outcome.FAILED))
    assert (seen(store).between_attempts("run"), seen(store).over("run")) == (False, True)
    assert seen(store).runs == [("run", None, True)]


def test_who_is_in_the_way_of_a_publisher() -> None:
    """The run that waits is; the one that works, only if it counts."""
    store = MemoryStore(clock=FakeClock())
    store.claim(Claim("key", "works", 0, "token", ttl_ms=30_000))

    assert seen(store).in_the_way(running_too=False) is None
    working = seen(store).in_the_way(running_too=True)
    assert working is not None
    assert (working.reason, working.run_id, working.retry_after) == (Reason.RUNNING, "works", 30.0)
    store.queue("key", "waits", ttl_ms=60_000, running_too=False)
    waiting = seen(store).in_the_way(running_too=True)
    assert waiting is not None
    assert (waiting.reason, waiting.run_id, waiting.retry_after) == (Reason.QUEUED, "waits", 60.0)
    assert seen(store).known_runs == ["works", "waits", "works"]
