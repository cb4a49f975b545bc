"""Other libraries' locks under the same load, the same nemesis and the same judge.

`python -m tests.torture.peers NAME URL FOLDER CLIENT SEED TTL LONGEST` is one process of clients.
Each library is used as its documentation says, with the same ttl where it takes one.
Who cannot know whether a lock is still its own believes so until its body ends: the judge goes by that.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.torture.body import work
from tests.torture.client import READY
from tests.torture.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Attempt = Callable[[str], AbstractContextManager[Any]]

KEYS, THREADS, PAUSE = 3, 2, 0.15


@dataclass
class Belief:
    """What stands for a lease in a body whose lock says nothing of itself."""

    key: str
    run_id: str
    fence: int = 0
    attempt: int = 0
    held: bool = True


def singleflight(url: str, ttl: float) -> Attempt:
    """This library."""
    from singleflight import Lease, try_lease
    from singleflight.stores import open_store

    store = open_store(url, timeout=0.5)

    @contextmanager
    def attempt(key: str) -> Iterator[Any]:
        lease = try_lease(store, key, ttl=ttl)
        if not isinstance(lease, Lease):
            yield None
            return
        with lease:
            yield lease

    return attempt


def python_redis_lock(url: str, ttl: float) -> Attempt:
    """With `auto_renewal`."""
    import redis_lock

    client = _client(url)

    @contextmanager
    def attempt(key: str) -> Iterator[Any]:
        lock = redis_lock.Lock(client, key, expire=round(ttl), auto_renewal=True)
        taken = lock.acquire(blocking=False)
        try:
            yield _belief(key) if taken else None
        finally:
            if taken:
                lock.release()

    return attempt


def redis_py(url: str, ttl: float) -> Attempt:
    """`redis.Redis.lock`, which renews nothing by itself."""
    client = _client(url)

    @contextmanager
    def attempt(key: str) -> Iterator[Any]:
        lock = client.lock(key, timeout=ttl, blocking=False)
        taken = lock.acquire()
        try:
            yield _belief(key) if taken else None
        finally:
            if taken:
                lock.release()

    return attempt


def dramatiq_limiter(url: str, ttl: float) -> Attempt:
    """`ConcurrentRateLimiter` with a limit of one."""
    from dramatiq.rate_limits import ConcurrentRateLimiter
    from dramatiq.rate_limits.backends import RedisBackend

    limits = RedisBackend(client=_client(url))

    @contextmanager
    def attempt(key: str) -> Iterator[Any]:
        limiter = ConcurrentRateLimiter(limits, key, limit=1, ttl=round(ttl * 1000))
        with limiter.acquire(raise_on_failure=False) as taken:
            yield _belief(key) if taken else None

    return attempt


def celery_singleton(url: str, ttl: float) -> Attempt:
    """The lock of its tasks, with `lock_expiry`."""
    from celery_singleton.backends.redis import RedisBackend

    backend = RedisBackend(url, socket_timeout=0.5)

    @contextmanager
    def attempt(key: str) -> Iterator[Any]:
        taken = backend.lock(key, str(uuid.uuid4()), expiry=round(ttl))
        try:
            yield _belief(key) if taken else None
        finally:
            if taken:
                backend.unlock(key)

    return attempt


def celery_once(url: str, ttl: float) -> Attempt:
    """The lock of its tasks, with the `timeout` that it asks for."""
    from celery_once import AlreadyQueued
    from celery_once.backends import Redis

    backend = Redis({"url": url, "default_timeout": round(ttl)})

    @contextmanager
    def attempt(key: str) -> Iterator[Any]:
        try:
            backend.raise_or_lock(key, timeout=round(ttl))
        except AlreadyQueued:
            yield None
            return
        try:
            yield _belief(key)
        finally:
            backend.clear_lock(key)

    return attempt


PEERS: dict[str, Callable[[str, float], Attempt]] = {
    "singleflight": singleflight,
    "python-redis-lock": python_redis_lock,
    "redis-py Lock": redis_py,
    "Dramatiq ConcurrentRateLimiter": dramatiq_limiter,
    "celery-singleton": celery_singleton,
    "celery-once": celery_once,
}


def _client(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url, socket_timeout=0.5)


def _belief(key: str) -> Belief:
    return Belief(key, str(uuid.uuid4()))


def _work(attempt: Attempt, journal: Journal, chance: random.Random, longest: float) -> None:
    over = Path(journal.folder) / "over"
    while not over.exists():
        key, seconds = f"key{chance.randrange(KEYS)}", chance.choice([0.0, 0.05, 0.1, 0.3, longest])
        # A lock that fails is tried again: some raise when what they give back is not theirs any more.
        with suppress(Exception), attempt(key) as held:
            if held is not None:
                work(journal, held, seconds)
        time.sleep(chance.uniform(0, PAUSE))


def main() -> None:
    """Do as told."""
    name, url, folder, client, seed, ttl, longest = sys.argv[1:]
    journal, attempt = Journal(folder, client), PEERS[name](url, float(ttl))
    chances = [random.Random(f"{seed} {client} {number}") for number in range(THREADS)]
    threads = [
        threading.Thread(target=_work, args=(attempt, journal, chance, float(longest)), daemon=True)
        for chance in chances
    ]
    print(READY, flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
