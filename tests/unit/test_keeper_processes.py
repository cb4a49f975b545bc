"""Forks that call no hook of Python's, and leases that are taken when the program is at its end."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

FORK = """
    import ctypes, os, signal, threading, time, traceback
    from singleflight import lease, try_lease
    from singleflight.lease import Lease
    from singleflight.leases.keeper import process_keeper
    from singleflight.stores.memory import MemoryStore

    def until(condition):
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    store = MemoryStore()
    expires = lambda one: store.peek(one.key).record.expires_ms
    inherited = try_lease(store, "inherited", ttl=1) if {taken_before} else None

    def in_child():
        if inherited is not None:
            assert inherited.release() is False, "a child releases nothing of its parent's"
            assert store.peek(inherited.key).record.held
        own = try_lease(store, "own", ttl=1)
        first = expires(own)
        until(lambda: expires(own) > first)  # it is renewed
        assert own.release() is True
        assert not store.peek(own.key).record.held
        with lease(store, "block"):
            pass
        before = expires(own)
        time.sleep(1)
        assert expires(own) == before, "a lease that was given back is not renewed"
        if inherited is not None:
            assert expires(inherited) == told, "a child renews nothing of its parent's"

    if inherited is not None:
        # Python's own locks are not seen to in such a fork: just after a renewal, no thread of ours has one.
        first = expires(inherited)
        until(lambda: expires(inherited) > first)
        time.sleep(0.05)
    told = inherited and expires(inherited)
    # PyDLL keeps the interpreter's lock, as a C program does that forks: no hook of Python's is called.
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        signal.alarm(40)  # whatever it waits for, it outlives no test
        try:
            in_child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    print("fine")
"""

ASYNC = """
    import asyncio, ctypes, os, signal, threading, time, traceback
    from singleflight import aio
    from singleflight.stores.memory import MemoryStore

    async def main():
        async with asyncio.timeout(20), aio.lease(MemoryStore(), "name"):
            pass

    asyncio.run(main())
    # Python's own locks are not seen to in such a fork: none of our threads may be just starting.
    deadline = time.monotonic() + 20
    while len([t for t in threading.enumerate() if t.name.startswith("singleflight")]) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        signal.alarm(40)
        try:
            asyncio.run(main())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    print("fine")
"""

LATE = """
    import threading, time
    import singleflight

    def work():
        threading.main_thread().join()
        time.sleep(0.2)
        from singleflight.stores.memory import MemoryStore
        store = MemoryStore()
        try:
            with singleflight.lease(store, "late", ttl=1) as held:
                before = store.peek(held.key).record.expires_ms
                deadline = time.monotonic() + 10
                while store.peek(held.key).record.expires_ms == before:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            print("renewed", flush=True)
        except singleflight.ConfigurationError as error:
            assert "main thread" in str(error), error
            print("refused", flush=True)

    threading.Thread(target=work).start()
"""


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.timeout(70)
@pytest.mark.parametrize("taken_before", [True, False])
def test_a_fork_that_calls_no_hook_is_seen(taken_before: bool) -> None:
    """The child's leases are renewed and given back; those of its parent are not the child's."""
    ended = _run(FORK.replace("{taken_before}", str(taken_before)))

    assert (ended.returncode, ended.stdout.strip()) == (0, "fine"), ended.stderr


@pytest.mark.timeout(70)
def test_async_code_works_on_both_sides_of_a_fork_that_calls_no_hook() -> None:
    """The threads that ask stores are those of one process."""
    ended = _run(ASYNC)

    assert (ended.returncode, ended.stdout.strip()) == (0, "fine"), ended.stderr


@pytest.mark.timeout(70)
def test_the_first_lease_after_the_main_thread_has_ended_is_renewed_or_refused_in_words() -> None:
    """Python 3.12 starts no thread any more at that time; the versions before and after do."""
    ended = _run(LATE)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip() in ("renewed", "refused")
