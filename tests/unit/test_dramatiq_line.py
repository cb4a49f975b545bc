"""Dramatiq's messages in the line of a key: kept as they came, called as they were, and where that can be."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AgeLimit, Pipelines, Retries
from dramatiq.results import ResultMissing, Results
from dramatiq.results.backends.stub import StubBackend

from singleflight import Singleton
from singleflight.dramatiq import ConfigurationError, Singleflight, install
from singleflight.dramatiq.delivery import OPTION
from singleflight.dramatiq.line import home_of
from singleflight.keys import lease_key
from singleflight.lease import Outcome
from singleflight.stores.base import Claim, Release
from singleflight.stores.memory import MemoryStore
from tests.support.core import Line
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = lease_key("singleflight", "work")


class Setting:
    """One actor on a stub broker with a worker; its key can be held by somebody else."""

    def __init__(self, **options: Any) -> None:
        self.store, self.ran = MemoryStore(), list[tuple[Any, ...]]()
        self.broker = StubBroker(middleware=[AgeLimit(), Retries(min_backoff=10), Pipelines()])
        self.broker.add_middleware(Results(backend=StubBackend(), store_results=True))
        install(self.broker, self.store, waiting="line")
        declare = dramatiq.actor(
            broker=self.broker, actor_name="work", singleton=Singleton(by=(), **options), queue_name="slow"
        )
        self.actor = declare(self._work)
        self.worker = dramatiq.Worker(self.broker, worker_timeout=10, worker_threads=2)

    def _work(self, number: int) -> int:
        self.ran.append((number,))
        return number

    def hold(self) -> None:
        """Hold the key as somebody else."""
        self.store.claim(Claim(KEY, "other", 0, "o" * 32, 30_000))

    def let_go(self) -> None:
        """Free it, in a process that can publish nothing: the sweep calls."""
        self.store.release(Release(KEY, "other", 0, "o" * 32, Outcome.FINISHED))

    def waiting(self) -> list[str]:
        """Return who waits, in order."""
        return [one.run_id for one in self.store.line_of(KEY).shown]

    def send(self, number: int, **options: Any) -> dramatiq.Message[Any]:
        """Send a message and wait until it stands in the line."""
        before = len(self.waiting())
        message = self.actor.send_with_options(args=(number,), **options)
        until(lambda: len(self.waiting()) > before, what="its place in the line")
        return message


@pytest.fixture
def setting() -> Iterator[Setting]:
    """Return one whose messages are deferred, with its worker."""
    setting = Setting(on_conflict="defer")
    setting.worker.start()
    yield setting
    setting.worker.stop()


def test_those_who_wait_are_called_in_order_and_nothing_is_with_the_broker(setting: Setting) -> None:
    """They keep no worker busy and no queue full, and their results stay open until they have run."""
    setting.hold()
    messages = [setting.send(number) for number in range(4)]
    until(lambda: not setting.broker.queues["slow"].unfinished_tasks, what="their acknowledgement")
    assert setting.broker.queues["slow.DQ"].qsize() == 0
    with pytest.raises(ResultMissing):
        messages[0].get_result(backend=setting.broker.get_results_backend())
    setting.let_go()

    results = [
        message.get_result(backend=setting.broker.get_results_backend(), block=True, timeout=10_000)
        for message in messages
    ]
    assert results == [0, 1, 2, 3]
    assert setting.ran == [(0,), (1,), (2,), (3,)]
    assert setting.waiting() == []


def test_a_called_message_is_the_one_that_came_with_its_number_and_order(setting: Setting) -> None:
    """Id, queue, arguments, options and mark are those that were sent; it is no new publish of its id."""
    seen: list[Any] = []

    class Seeing(dramatiq.Middleware):
        def before_process_message(self, _broker: Any, message: Any) -> None:
            seen.append((message.message_id, message.queue_name, message.args, dict(message.options)))

    setting.broker.add_middleware(Seeing(), before=AgeLimit)
    setting.hold()
    message = setting.send(7, tenant="acme")
    setting.let_go()
    message.get_result(backend=setting.broker.get_results_backend(), block=True, timeout=10_000)

    first, second = seen
    assert first[:3] == second[:3] == (message.message_id, "slow", (7,))
    carried = second[3].pop(OPTION)
    sent = first[3].pop(OPTION)
    assert second[3] == first[3] == {"tenant": "acme"}
    assert (carried["for"], carried["mark"]) == (sent["for"], sent["mark"])
    assert carried["call_no"] > 0
    assert carried["order"] > 0
    assert setting.ran == [(7,)]


def test_a_run_that_waits_too_long_leaves_the_line(setting: Setting) -> None:
    """A message that is older than its ``max_age`` when it is called lets the next one go."""
    setting.hold()
    old = setting.send(1, max_age=200)
    other = setting.send(2)
    time.sleep(0.3)
    setting.let_go()

    other.get_result(backend=setting.broker.get_results_backend(), block=True, timeout=10_000)
    assert setting.ran == [(2,)]
    assert setting.waiting() == []
    assert [message.message_id for message in setting.broker.dead_letters] == [old.message_id]


def test_the_sweep_ends_with_its_worker() -> None:
    """One for each worker, and none where no actor is a singleton."""

    def sweeps() -> int:
        return [thread.name for thread in threading.enumerate()].count("singleflight-sweep")

    setting, before = Setting(), sweeps()
    setting.worker.start()
    assert sweeps() == before + 1
    setting.worker.stop()
    assert sweeps() == before
    other = StubBroker(middleware=[AgeLimit()])
    install(other, waiting="line")
    worker = dramatiq.Worker(other, worker_timeout=10)
    worker.start()
    assert sweeps() == before
    worker.stop()


@pytest.mark.parametrize(
    ("store", "waiting", "lines"),
    [
        (None, None, False),
        (None, "countdown", False),
        (None, "auto", True),
        ("redis://localhost/3", "auto", True),
        ("redis://elsewhere/3", "auto", False),
        ("sqlite:///x.db", "auto", True),
        ("redis://elsewhere/3", "line", True),
    ],
)
def test_where_runs_wait(store: Any, waiting: Any, lines: bool) -> None:
    """By themselves in the line of the broker's own server, or of a database."""
    broker = RedisBroker(url="redis://localhost:6379/0", middleware=[])
    assert (Singleflight(store, waiting=waiting).runtime.leases(broker).calling is not None) is lines


def test_a_setting_a_store_or_a_broker_that_cannot_be_is_refused() -> None:
    """With the remedy; by itself such a broker waits by countdown."""
    rabbitmq = pytest.importorskip("dramatiq.brokers.rabbitmq")
    with pytest.raises(ConfigurationError.__mro__[1], match="waiting='queue' is unknown"):
        Singleflight(waiting="queue")
    with pytest.raises(ConfigurationError.__mro__[1], match="write waiting='countdown'"):
        Singleflight(Line(time.time), waiting="line").runtime.leases(StubBroker(middleware=[]))
    broker = rabbitmq.RabbitmqBroker(url="amqp://localhost", middleware=[])
    with pytest.raises(ConfigurationError.__mro__[1], match="confirm_delivery=True"):
        Singleflight("sqlite:///x.db", waiting="line").runtime.leases(broker)
    assert Singleflight("sqlite:///x.db", waiting="auto").runtime.leases(broker).calling is None


def test_a_home_is_one_place_of_one_broker() -> None:
    """Processes with the same address share it; other databases, nodes or namespaces are others."""

    def home(url: str, **options: Any) -> str:
        return home_of(RedisBroker(url=url, middleware=[], **options), "p")

    assert home("redis://a:6379/0").startswith("p:home:dramatiq:")
    assert home("redis://a:6379/0") == home("redis://a:6379")
    others = [home("redis://a:6379/1"), home("redis://b:6379/0"), home("redis://a/0", namespace="x")]
    assert len({home("redis://a:6379/0"), *others}) == 4
