"""The store in DynamoDB keeps the contract, and what only it does."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight import Lease, lease, try_lease
from singleflight.errors import ConfigurationError, Conflict, StoreUnavailable
from singleflight.lease import Busy, Granted, Reason
from singleflight.stores import open_store
from singleflight.stores.base import Renewed
from singleflight.stores.dynamodb.clock import BOUND, ServerClock
from singleflight.stores.dynamodb.rights import policies
from singleflight.stores.dynamodb.store import LEFT_LYING, DynamoStore
from singleflight.stores.dynamodb.table import Table
from singleflight.testing import FakeClock, RealClock, StoreContract
from singleflight.testing.contract_base import claim, granted, ran, refused, release, renew
from tests.support.dynamo import REGION, Refusals
from tests.support.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.dynamo import Ministack


class HandClock(ServerClock):
    """A clock that is exactly as the test says, whatever the headers are."""

    bound_ms = 0

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def learn(self, headers: Mapping[str, str], sent: float) -> None:
        """Nothing to learn."""

    @property
    def ready(self) -> bool:
        """Always."""
        return True

    def now_us(self) -> int:
        """Return the test's time."""
        return round(self._clock() * 1_000_000)


class TestDynamoStore(StoreContract):
    """The contract on exact instants: the server's own clock shows whole seconds only."""

    can_advance = True

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that only moves when a test says so.

        It is far ahead: by its TTL, an emulator removes what is over by the clock on the wall.
        """
        return FakeClock(4_000_000_000.123)

    @pytest.fixture(params=["ministack", "dynalite"])
    def store(self, request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[DynamoStore]:
        """A store on each emulator, by that clock."""
        store = DynamoStore.from_url(request.getfixturevalue(request.param).url, timeout=10)
        store._clock = HandClock(clock)
        yield store
        store.close()

    def lose(self, store: DynamoStore, key: str) -> None:
        """Delete the item."""
        store._client().delete_item(TableName=store._table.name, Key={"lease_key": {"S": key}})


class _ByItsOwnClock(StoreContract):
    tick = 0.2
    clock_error = 2 * BOUND

    lose = TestDynamoStore.lose


_ByItsOwnClock.__test__ = False


@pytest.mark.timeout(300)
def test_the_contract_holds_by_dynamodbs_own_clock(store: DynamoStore) -> None:
    """Every rule of the contract holds by the time in the server's answers; all at once, to be quick."""

    def broken(name: str) -> str:
        test = getattr(_ByItsOwnClock(), name)
        given = {"store": store, "clock": RealClock(), "key": f"singleflight:contract:{{{uuid4().hex}}}"}
        try:
            test(**{arg: given[arg] for arg in signature(test).parameters})
        except pytest.skip.Exception:
            return ""
        except AssertionError as error:
            return f"{test.__doc__}: {error}"
        return ""

    names = [name for name in dir(_ByItsOwnClock) if name.startswith("test_")]
    with ThreadPoolExecutor(len(names)) as pool:
        results = list(pool.map(broken, names))

    assert len(names) > 60
    assert [result for result in results if result] == []


@pytest.fixture
def store(ministack: Ministack) -> Iterator[DynamoStore]:
    """A store that goes by the server's clock; patient, for some tests are all contention."""
    store = DynamoStore.from_url(ministack.url, timeout=30)
    yield store
    store.close()


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"singleflight:shop.nightly_report:{{{uuid4().hex}}}"


@pytest.fixture
def refusals(ministack: Ministack) -> Iterator[Refusals]:
    """A server before the emulator that may say no."""
    with Refusals(ministack.port) as refusals:
        yield refusals


@pytest.fixture
def hindered(ministack: Ministack, refusals: Refusals) -> Iterator[DynamoStore]:
    """A store that reaches the emulator through it."""
    store = DynamoStore.from_url(ministack.table(port=refusals.port), timeout=2)
    yield store
    store.close()


def test_a_free_process_takes_over_at_the_first_try(
    store: DynamoStore, ministack: Ministack, key: str
) -> None:
    """An expired item that still lies there is free for a brand-new process's only try, in time."""
    sent = time.monotonic()
    granted(store, key, "a", ttl_ms=1000)
    # What is trusted ends no later than this; before it, nobody may be granted.
    trusted_until = sent + 1
    answers = []
    while time.monotonic() < sent + 1 + 2 * BOUND + 20:
        newcomer = DynamoStore.from_url(ministack.url, timeout=10)
        answers.append(claim(newcomer, key, f"run-{len(answers)}"))
        newcomer.close()
        if isinstance(answers[-1], Granted):
            break
        # Not after each other without end, and never longer than the documented bound.
        time.sleep(0.1)
    took = time.monotonic() - sent

    assert isinstance(answers[-1], Granted)
    assert all(isinstance(answer, Busy) and answer.reason is Reason.RUNNING for answer in answers[:-1])
    assert time.monotonic() > trusted_until
    assert took > 1


def test_the_tidying_attribute_is_whole_seconds_long_after_the_end(store: DynamoStore, key: str) -> None:
    """DynamoDB may remove an item only when it has been forgotten for a while; the time is in seconds."""
    granted(store, key, "a", ttl_ms=5000)
    item = store._get(key)
    assert item is not None
    forget_ms, forget_at = (int(item[name]["N"]) for name in ("forget_ms", "forget_at"))

    assert forget_ms >= int(item["expires_ms"]["N"]) + store.remember * 1000
    assert LEFT_LYING <= forget_at - forget_ms / 1000 <= LEFT_LYING + 1


def test_a_window_is_never_shorter_than_asked(store: DynamoStore, key: str) -> None:
    """A run is refused within a second of the last start, and granted after the stated resolution."""
    start = time.monotonic()
    ran(store, key, "a", window_ms=1000)
    busy = None
    while not isinstance(answer := claim(store, key, "b", window_ms=1000), Granted):
        busy = answer
        assert time.monotonic() < start + 1 + 2 * BOUND + 20, "the window never ends"
        time.sleep(0.05)

    assert busy is not None
    assert busy.reason is Reason.WINDOW
    assert time.monotonic() - start > 1


def test_a_renewal_whose_answer_was_lost_is_recognised(
    hindered: DynamoStore, refusals: Refusals, key: str
) -> None:
    """A renewal that was written, and whose answer never came, is RENEWED when it is tried again."""
    grant = granted(hindered, key, "a")
    refusals.lose_answers()

    assert renew(hindered, key, "a", grant) is Renewed.RENEWED
    assert refusals.requests.count("PutItem") == 3


def test_a_claim_whose_answer_was_lost_is_recognised(
    hindered: DynamoStore, refusals: Refusals, key: str
) -> None:
    """A claim that was written, and whose answer never came, is granted when it is tried again."""
    refusals.lose_answers()

    grant = granted(hindered, key, "a")

    assert hindered.peek(key).record.fence == grant.fence  # type: ignore[union-attr] - it is there
    assert refusals.requests.count("PutItem") == 1


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "ThrottlingException"])
def test_throttling_is_waited_out(hindered: DynamoStore, refusals: Refusals, key: str, code: str) -> None:
    """Requests that are throttled a few times succeed in the end, and nobody hears of it."""
    hindered.timeout = 10  # so that a busy machine cannot be taken for endless throttling
    refusals.refuse(code, 3)

    granted(hindered, key, "a")


@pytest.mark.timeout(120)
def test_throttling_lowers_the_rate_of_requests_and_costs_no_lease(
    ministack: Ministack, refusals: Refusals
) -> None:
    """Ten who wait ask less often than before, and leave room for the renewals of the one who holds."""
    url, name, over = ministack.table(port=refusals.port), uuid4().hex, threading.Event()
    held = try_lease(DynamoStore.from_url(url), name, ttl=9)
    assert isinstance(held, Lease)
    waiting = DynamoStore.from_url(url)

    def wait() -> None:
        while not over.is_set():
            with suppress(Conflict, StoreUnavailable), lease(waiting, name, wait=1):
                pass

    waiters = [threading.Thread(target=wait) for _ in range(10)]
    for waiter in waiters:
        waiter.start()
    try:
        time.sleep(2)
        usual = _rate(refusals, 3)
        refusals.throttle(0.8)
        time.sleep(1)
        throttled = _rate(refusals, 9)
        refusals.throttle(0)
        sys.stdout.write(f"\n{usual:.0f} requests a second, {throttled:.0f} of which 80 % are throttled\n")

        assert throttled < usual
        assert held.held
    finally:
        over.set()
        for waiter in waiters:
            waiter.join(20)
        held.release()


def _rate(refusals: Refusals, seconds: float) -> float:
    before = len(refusals.requests)
    time.sleep(seconds)
    return (len(refusals.requests) - before) / seconds


def test_endless_throttling_is_store_unavailable(hindered: DynamoStore, refusals: Refusals, key: str) -> None:
    """Requests that are throttled for good are unavailable in time, not a duplicate."""
    refusals.refuse("ProvisionedThroughputExceededException", Refusals.ENDLESS)
    start = time.monotonic()

    with pytest.raises(StoreUnavailable, match="ProvisionedThroughputExceeded"):
        claim(hindered, key, "a")
    assert time.monotonic() - start < 60
    assert len(refusals.requests) > 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("ExpiredTokenException", "they have expired"),
        ("UnrecognizedClientException", "AWS does not know them"),
        ("AccessDeniedException", "dynamodb:GetItem and dynamodb:PutItem"),
        ("InvalidSignatureException", "clock is off"),
    ],
)
def test_what_will_never_work_is_permanent(
    hindered: DynamoStore, refusals: Refusals, key: str, code: str, words: str
) -> None:
    """Refused credentials and missing rights are permanent faults that say what to do."""
    refusals.refuse(code, Refusals.ENDLESS)

    with pytest.raises(ConfigurationError, match=words):
        claim(hindered, key, "a")
    assert len(refusals.requests) == 1


def test_a_missing_table_is_named_with_its_remedy(ministack: Ministack, key: str) -> None:
    """A table that is not there is a permanent fault that names the command."""
    with pytest.raises(ConfigurationError, match=r"`singleflight init 'dynamodb://none\?region"):
        claim(DynamoStore.from_url(ministack.table("none")), key, "a")


def test_a_foreign_table_is_permanent(ministack: Ministack, key: str) -> None:
    """A table with another key is a permanent fault, at use and when it is to be made."""
    client = Table("", REGION, f"http://127.0.0.1:{ministack.port}").client(5)
    client.create_table(
        TableName="orders",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )

    with pytest.raises(ConfigurationError, match="not ours"):
        claim(DynamoStore.from_url(ministack.table("orders")), key, "a")
    with pytest.raises(ConfigurationError, match="not ours"):
        DynamoStore.from_url(ministack.table("orders")).set_up()


def test_the_table_tidies_itself_and_is_paid_by_request(ministack: Ministack) -> None:
    """A table that was made, even twice, has its tidying on and no fixed capacity."""
    DynamoStore.from_url(ministack.url).set_up()
    client = Table("", REGION, f"http://127.0.0.1:{ministack.port}").client(5)

    described = client.describe_time_to_live(TableName="leases")["TimeToLiveDescription"]
    assert (described["TimeToLiveStatus"], described["AttributeName"]) == ("ENABLED", "forget_at")
    table = client.describe_table(TableName="leases")["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_the_least_policy_is_what_is_used(hindered: DynamoStore, refusals: Refusals, key: str) -> None:
    """The store asks for nothing that the printed policy does not allow."""
    grant = granted(hindered, key, "a", window_ms=1000)
    renew(hindered, key, "a", grant)
    hindered.queue(key, "b", ttl_ms=1000, running_too=False)
    hindered.unqueue(key, "b")
    release(hindered, key, "a")
    hindered.evict(key)
    hindered.peek(key)

    _, workers, *_ = policies(hindered._table)
    (statement,) = json.loads(workers)["Statement"]
    assert {f"dynamodb:{operation}" for operation in refusals.requests} == set(statement["Action"])
    assert statement["Resource"] == f"arn:aws:dynamodb:{REGION}:*:table/leases"


def test_a_refusal_writes_nothing(hindered: DynamoStore, refusals: Refusals, key: str) -> None:
    """Somebody who is refused and does not wait costs one read."""
    granted(hindered, key, "a")
    refusals.requests.clear()
    refused(hindered, key, "b")

    assert refusals.requests == ["GetItem"]


def test_another_region_of_the_table_is_refused(ministack: Ministack, store: DynamoStore, key: str) -> None:
    """A lease that was written in another region is a permanent fault, not a duplicate."""
    granted(store, key, "a")
    elsewhere = DynamoStore.from_url(ministack.url.replace(REGION, "us-east-1"), timeout=5)
    # The emulator keeps regions apart; a global table copies items.
    client = Table("", "us-east-1", elsewhere._table.endpoint).client(5)
    elsewhere.set_up()
    client.put_item(TableName="leases", Item=store._get(key))

    with pytest.raises(ConfigurationError, match="was written in eu-west-1, and here is us-east-1"):
        claim(elsewhere, key, "b")


def test_a_record_of_another_version_is_no_duplicate(store: DynamoStore, key: str) -> None:
    """A record of an unknown version is a permanent fault that names both versions."""
    granted(store, key, "a")
    store._request("put_item", Item={**(store._get(key) or {}), "v": {"N": "99"}})

    with pytest.raises(ConfigurationError, match=r"record version 99, this singleflight reads 2"):
        claim(store, key, "b")


def test_no_server_is_store_unavailable(ministack: Ministack, key: str) -> None:
    """A server that is not there is unavailable, and the text names the place."""
    store = DynamoStore.from_url(ministack.table(port=free_port()))

    with pytest.raises(StoreUnavailable, match=r"dynamodb://leases\?region=eu-west-1&endpoint="):
        claim(store, key, "a")


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://leases?regoin=eu-west-1",
        "dynamodb://key:secret@leases",
        "dynamodb://leases/nightly",
    ],
)
def test_a_url_that_cannot_work_is_refused_when_it_is_opened(url: str) -> None:
    """A missing table name, a misspelt option, or credentials in the URL; these are not repeated."""
    with pytest.raises(ConfigurationError, match="URL of a DynamoDB store is") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_both_schemes_open_a_store() -> None:
    """The short scheme of setddblock's users names the same store."""
    one, other = open_store("ddb://leases?region=eu-west-1"), open_store("dynamodb://leases?region=eu-west-1")

    assert isinstance(one, DynamoStore)
    assert isinstance(other, DynamoStore)
    assert one.address == other.address


@pytest.mark.parametrize("package", ["boto3", "botocore"])
def test_a_missing_driver_is_named_with_its_remedy(package: str) -> None:
    """Without boto3 the store says what to install, and the library itself still imports."""
    code = (
        "import importlib.util as util, sys\n"
        f"sys.modules[{package!r}], found = None, util.find_spec\n"
        f"util.find_spec = lambda name: None if name == {package!r} else found(name)\n"
        "import singleflight\n"
        "from singleflight.stores import open_store\n"
        "try: open_store('dynamodb://leases')\n"
        "except singleflight.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert 'pip install "singleflight-tasks[dynamodb]"' in done.stdout, done.stderr


Exchange = st.tuples(st.floats(0, 5), st.floats(0, 0.4), st.floats(0, 0.4))


@given(ahead=st.floats(-1e6, 1e6), exchanges=st.lists(Exchange, min_size=1, max_size=30))
def test_the_clock_is_never_ahead_and_at_most_its_bound_behind(
    ahead: float, exchanges: list[tuple[float, float, float]]
) -> None:
    """Whatever requests and answers took, the clock shows a time that has been, at most `BOUND` ago."""
    now = 1000.0
    clock = ServerClock(steady=lambda: now, wall=lambda: now + ahead)
    for pause, there, back in exchanges:
        now += pause
        sent = now
        now += there
        date = int(now + ahead + 1e7)
        now += back
        clock.learn(_dated(date), sent)
        behind = now + ahead + 1e7 - clock.now_us() / 1e6

        assert behind > -0.001
        if clock.ready:
            assert behind < BOUND + 0.001


def test_the_clock_gets_sharper() -> None:
    """Answers at different parts of a second narrow the time down to what the network takes."""
    now = 1000.0
    clock = ServerClock(steady=lambda: now, wall=lambda: now)
    for _ in range(100):
        sent = now
        now += 0.01
        clock.learn(_dated(int(now)), sent)
        now += 0.037

    assert now - clock.now_us() / 1e6 < 0.1


def test_a_server_clock_that_steps_is_followed() -> None:
    """When the server's clock is set back or forth, the next answer counts alone."""
    now = 1000.0
    clock = ServerClock(steady=lambda: now, wall=lambda: now)
    for ahead in (0, 500, -500):
        clock.learn(_dated(int(now + ahead)), now)

        assert now + ahead - 1 <= clock.now_us() / 1e6 <= now + ahead


@pytest.mark.parametrize(("ahead", "words"), [(3600, "3600 s ahead"), (-3600, "3600 s behind"), (1, "")])
def test_a_wrong_clock_is_warned_of_once(ahead: float, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """A machine whose clock is off hears of it once; one that is a second off does not."""
    clock = ServerClock(steady=lambda: 1000.0, wall=lambda: 2000.5 + ahead)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            clock.learn(_dated(2000), 1000.0)

    assert [words in record.message for record in caplog.records] == ([True] if words else [])


def test_a_server_without_a_date_is_refused() -> None:
    """Without a Date header there is no time to go by, and that is permanent."""
    with pytest.raises(ConfigurationError, match="no usable Date header"):
        ServerClock().learn({}, 0.0)


def _dated(epoch: float) -> dict[str, Any]:
    return {"date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(epoch))}
