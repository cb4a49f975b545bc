"""Many processes on one store: nobody is inside together, whatever dies or is set wrong.

The witness is a counter in a file, far from the store: an update that two made at once is lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from singleflight.stores.dynamodb.clock import BOUND
from tests.support.child import DIE_WITH_PARENT
from tests.support.crowd import Crowd, run, wrong_clock

pytestmark = pytest.mark.timeout(240)  # twenty at once on a machine that has other work, too

SERVERS = ("postgresql", "mariadb", "ministack")
STORES = (*SERVERS, "dynalite", "sqlite", "valkey", "redis7", "cluster", "sentinels", "tls")
HOUR = 3600


@pytest.fixture
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Crowd:
    """A crowd of 20 on the store that the test's parameter names: 4 processes of 5 threads."""
    if request.param == "sqlite":
        url = str(request.getfixturevalue("sqlite_url"))
    else:
        url = str(request.getfixturevalue(request.param).url)
    # The emulator takes as much of the machine as all of its clients.
    poll = 1.0 if url.startswith("dynamodb") else 0.2
    return Crowd(url, f"crowd-{uuid4().hex}", str(tmp_path / "counter"), ttl=10.0, poll=poll)


def changed(crowd: Crowd, **changes: object) -> Crowd:
    """Return a crowd with other settings."""
    return Crowd(**{**vars(crowd), **changes})  # type: ignore[arg-type] - a typo fails at once


def counter(crowd: Crowd) -> int:
    """Return what the file says."""
    return int(Path(crowd.counter).read_text())


def shortest(crowd: Crowd) -> float:
    """Return the shortest lease that the store can keep."""
    return 5.0 if crowd.url.startswith("dynamodb") else 2.0


@pytest.mark.parametrize("crowd", STORES, indirect=True)
def test_no_update_is_lost(crowd: Crowd) -> None:
    """Two hundred updates by twenty at once add exactly two hundred; in a database, three times as many."""
    each = 30 if "sql" in crowd.url else 10
    counts = run(changed(crowd, each=each, dawdle=0.001))

    assert counter(crowd) == sum(count.updates for count in counts) == 20 * each
    assert sum(count.refused for count in counts) > 0, "nobody ever met anybody: nothing was tried"


@pytest.mark.parametrize("crowd", STORES, indirect=True)
def test_a_holder_that_is_killed_loses_only_its_own_update(crowd: Crowd) -> None:
    """A process that is killed inside its update leaves the lease to the others, and the count exact."""
    start = time.monotonic()
    counts = run(changed(crowd, each=5, ttl=shortest(crowd), suicide=True))

    assert counter(crowd) == sum(count.updates for count in counts)
    assert sorted(count.updates for count in counts)[1:] == [25, 25, 25], "the others did not go on"
    assert min(count.updates for count in counts) == 2, "nobody was killed"
    assert time.monotonic() - start > shortest(crowd) / 2, "nobody had to wait for the dead one's lease"


@pytest.mark.parametrize("crowd", ["postgresql", "mariadb", "sqlite"], indirect=True)
def test_fifty_first_claims_at_once_give_one_grant(crowd: Crowd) -> None:
    """Of fifty processes that claim a key nobody knows at the same moment, one is granted, none fails."""
    counts = run(changed(crowd, processes=50, threads=1, once=True, timeout=60))

    assert [sum(count.updates for count in counts), sum(count.refused for count in counts)] == [1, 49]


@pytest.mark.parametrize("crowd", SERVERS, indirect=True)
def test_clocks_that_are_an_hour_off_change_nothing(crowd: Crowd) -> None:
    """With machines an hour ahead and an hour behind, each with a process that dies, the count is exact."""
    clocks = [wrong_clock("+1h"), wrong_clock("-1h")]
    counts = run(changed(crowd, each=5, ttl=shortest(crowd), suicide=True, environments=clocks))

    assert counter(crowd) == sum(count.updates for count in counts)
    assert sorted(count.updates for count in counts) == [2, 2, 25, 25]
    here = time.time()
    offsets = sorted(round((count.now - here) / HOUR) for count in counts)
    assert offsets == [-1, -1, 1, 1], "the clocks were not off"


TAKE = """
import sys, threading, time
from singleflight.lease import Granted
from singleflight.stores import open_store
from singleflight.stores.base import Claim
url, key, run, ttl = sys.argv[1:]
time.sleep = lambda seconds: threading.Event().wait(seconds)  # libfaketime breaks the real one
store, refused = open_store(url, timeout=20), 0.0
while store.peek(key) is None and run == "second":
    time.sleep(0.02)
while True:
    sent = time.monotonic()
    if isinstance(store.claim(Claim(key, run, 0, run, round(float(ttl) * 1000))), Granted):
        break
    refused = sent
    time.sleep(0.02)
print(refused, sent, time.monotonic(), time.time(), flush=True)
"""
"""Takes a lease as soon as it can, and never gives it back; the second run lets the first go first."""


@pytest.mark.parametrize("crowd", SERVERS, indirect=True)
def test_a_takeover_is_in_time_whatever_the_clocks_say(crowd: Crowd) -> None:
    """Two hours lie between the clocks of a dead holder and its taker: it comes after ttl, and soon after."""
    ttl = max(4.0, shortest(crowd))
    most = ttl + (2 * BOUND if crowd.url.startswith("dynamodb") else 0)

    with ThreadPoolExecutor(4) as pool:
        pairs = []
        for clocks in (("+1h", "-1h"), ("-1h", "+1h")):
            key = f"singleflight:{crowd.name}{clocks[0]}"
            pairs.append(
                [
                    pool.submit(elsewhere, TAKE, wrong_clock(clock), crowd.url, key, run, str(ttl))
                    for clock, run in zip(clocks, ("first", "second"), strict=True)
                ]
            )

    for pair in pairs:
        (_, taken, known, then), (refused, _, granted, now) = (one.result() for one in pair)
        assert round(abs(now - then) / HOUR) == 2, "the clocks were not off"
        assert refused > known, "nobody was ever refused"
        assert granted - taken >= ttl, "two held the lease"
        # Whoever asked later than this was granted, however long it took this machine to let it ask.
        assert refused - known <= most + 0.1


def elsewhere(code: str, environment: dict[str, str], *arguments: str) -> list[float]:
    """Run code in a process of its own and return the numbers that it prints."""
    done = subprocess.run(
        [*DIE_WITH_PARENT, sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout, done.stderr
    return [float(number) for number in done.stdout.split()]
