"""What `doctor` finds, and what it tries on every store: each operation, how fast, by which clock."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.keys import lease_key
from singleflight.lease import Granted, Outcome, monotonic
from singleflight.stores.base import Claim, Release, Renewal, Waits
from singleflight.stores.optional import Listing, Waking
from singleflight.stores.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Self

    from singleflight.stores.base import Store

SLOW = 0.05
"""Seconds: a claim is on the way of every run."""

CLOCK_WARNING, CLOCK_ERROR = 2.0, 5.0
"""Seconds between the store's clock and ours. Beyond 5, beat replicas on this host send nothing."""

TTL_MS = 2000


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """Dangerous, or not to be seen from here."""
    ERROR = "error"
    """It cannot work, or leases cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    remedy: str = ""

    @classmethod
    def said(cls, level: Level, text: str) -> Self:
        """Return what a sentence says that ends with its remedy, behind a semicolon."""
        what, _, remedy = text.rpartition("; ")
        return cls(level, what or text, remedy if what else "")


def of_store(store: Store, prefix: str) -> Generator[Finding, None, bool]:
    """Try every operation on a key of doctor's own, and compare clocks; return whether any of it worked."""
    key = lease_key(prefix, f"singleflight.doctor.{uuid.uuid4().hex}")
    times: list[float] = []
    refused: dict[str, list[str]] = {}
    for name, operation in _operations(store, key):
        began = monotonic()
        try:
            operation()
        except ConfigurationError as error:
            refused.setdefault(str(error), []).append(name)
        except StoreUnavailable as error:
            yield Finding(Level.ERROR, f"{name}: {error}", "check address, network and server")
            return False
        else:
            times.append(monotonic() - began)
    for text, names in refused.items():
        yield Finding.said(Level.ERROR, f"{', '.join(names) if times else 'nothing works'}: {text}")
    if not times:
        return False
    yield _latency(median(times))
    try:
        yield from _clock(store, key)
        yield _listing(store, prefix)
        store.evict(key)
    except (ConfigurationError, StoreUnavailable) as error:
        yield Finding.said(Level.ERROR, str(error))
    return True


def of_clock(offset: float) -> Finding:
    """Judge by how many seconds the store's clock is ahead of ours."""
    where = f"the store's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this host's"
    remedy = "run an NTP service on both; leases go by the store's clock, schedules by their hosts'"
    if abs(offset) > CLOCK_ERROR:
        return Finding(Level.ERROR, f"{where}: beat replicas on this host send nothing", remedy)
    if abs(offset) > CLOCK_WARNING:
        return Finding(Level.WARNING, where, remedy)
    return Finding(Level.OK, "the store's clock and this host's agree")


def _operations(store: Store, key: str) -> Iterator[tuple[str, Callable[[], object]]]:
    token, run = uuid.uuid4().hex, "doctor"
    fence = 1

    def claim() -> None:
        nonlocal fence
        answer = store.claim(Claim(key, run, 0, token, ttl_ms=TTL_MS))
        fence = answer.fence if isinstance(answer, Granted) else fence

    yield "claim", claim
    yield "renew", lambda: store.renew([Renewal(key, run, 0, token, fence, ttl_ms=TTL_MS)])
    yield "queue", lambda: store.queue(key, "next", ttl_ms=TTL_MS, running_too=False)
    yield "unqueue", lambda: store.unqueue(key, "next")
    yield "peek", lambda: store.peek(key)
    if not isinstance(store, Waking):
        yield "release", lambda: store.release(Release(key, run, 0, token, Outcome.FINISHED))
        return

    def wait(each: str) -> object:
        return store.claim(Claim(key, each, 0, each, ttl_ms=TTL_MS, wait_ms=TTL_MS, waits=Waits.LISTENING))

    # Two who wait: the first has the slot and the second stands in line, until the lease passes on.
    yield "wait", lambda: [wait(each) for each in ("second", "third")]
    yield "release", lambda: store.release(Release(key, run, 0, token, Outcome.FINISHED))
    # It has been told already, so this waits for nothing.
    yield "be told", lambda: store.listen(key, "second", seconds=1.0)
    yield "take over", lambda: wait("second")


def _latency(seconds: float) -> Finding:
    what = f"an operation takes {1000 * seconds:.1f} ms"
    if seconds > SLOW:
        return Finding(Level.WARNING, what, "each run waits for one before it starts; bring the store nearer")
    return Finding(Level.OK, what)


def _clock(store: Store, key: str) -> Iterator[Finding]:
    before = time.time()
    look = store.peek(key)
    after = time.time()
    if look is not None:
        # The store looked at its clock at some instant between the two.
        seconds = View(look).now
        yield of_clock(seconds - min(max(seconds, before), after))


def _listing(store: Store, prefix: str) -> Finding:
    if not isinstance(store, Listing):
        return Finding(Level.WARNING, "this store cannot list its keys", "name a key to show or evict it")
    try:
        next(iter(store.scan(prefix)), None)
    except ConfigurationError as error:
        return Finding.said(Level.WARNING, f"ls and watch cannot list keys: {error}")
    return Finding(Level.OK, "keys can be listed")
