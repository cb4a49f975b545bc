"""Tenants whose name is in no argument: `by` gets the headers of a message, at publish and in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from singleflight import Singleton
from singleflight.dramatiq import Duplicate, SingletonActor, install
from singleflight.stores.memory import MemoryStore
from tests.integration import tenant_app
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run a worker for all tests of this file."""
    with Rig(tmp_path_factory.mktemp("tenants")) as rig:
        yield rig.start(1, concurrency=4, args=["-I", tenant_app.__name__])
        assert not rig.endless_keys()


def send(rig: Rig, name: str, key: str, tenant: str, **how: Any) -> Any:
    """Publish for a tenant, whom only a header names."""
    return rig.send(name, key, {"headers": {"tenant": tenant}}, **how)


@pytest.mark.parametrize("name", ["by-header", "by-schema"])
def test_tenants_do_not_meet_and_each_meets_itself(rig: Rig, name: str) -> None:
    """The tenant is told by a header, or by what a `task_prerun` handler has made of it."""
    gate = rig.folder / f"{name}-gate"
    first = [send(rig, name, name, tenant, gate=str(gate)) for tenant in ("a", "b")]
    rig.wait_start(name, 2)
    again = send(rig, name, name, "a")
    until(lambda: again.state == "REVOKED", 30, "the skip")
    gate.touch()

    assert rig.states(first) == ["SUCCESS", "SUCCESS"]


def test_a_publisher_tells_tenants_apart_as_the_worker_does(rig: Rig) -> None:
    """No tenant gets another one's result, and a slot that was asked for is the one that is used."""
    gate = rig.folder / "looked-gate"
    first = send(rig, "looked", "looked", "a", gate=str(gate))
    rig.wait_start("looked")
    other, same = send(rig, "looked", "looked", "b"), send(rig, "looked", "looked", "a")
    gate.touch()

    assert (other.duplicate, same.duplicate, same.id) == (False, True, first.id)
    assert rig.states([first, other]) == ["SUCCESS", "SUCCESS"]
    assert not any(record.slot for record in rig.records().values())


def test_retries_and_deferrals_keep_their_tenant(rig: Rig) -> None:
    """Headers come along, so the key stays the same."""
    options = {"headers": {"tenant": "c"}, "singleton": Singleton(on_conflict="defer")}
    results = [rig.send("by-header", "kept", options, seconds=0.2, then="retry") for _ in range(2)]
    rig.states(results)

    assert len({record.fence for record in rig.records().values() if record.run_id in map(str, results)}) == 1


def test_a_dramatiq_actor_is_told_its_messages_options() -> None:
    """In Dramatiq they are what headers are elsewhere, and a sender looks with them too."""
    broker = StubBroker(middleware=[])
    install(broker, MemoryStore())
    options = Singleton(
        by=lambda account, headers: [account, headers["tenant"]], at_most_one="waiting_or_running"
    )
    actor = dramatiq.actor(broker=broker, actor_class=SingletonActor, actor_name="a", singleton=options)(
        lambda account: account
    )
    sent = [actor.send_with_options(args=(1,), tenant=tenant) for tenant in ("a", "b", "a")]
    messages = [
        dramatiq.broker.MessageProxy(dramatiq.Message.decode(m)) for m in broker.queues["default"].queue
    ]
    for message in messages:
        broker.emit_before("process_message", message)
        broker.emit_after("process_message", message)
        broker.emit_before("ack", message)

    assert [isinstance(message, Duplicate) for message in sent] == [False, False, True]
    assert len(messages) == 2
