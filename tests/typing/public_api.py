"""The public names as users write them; read by mypy and pyright, never run.

An ignored error is one that users must get: mypy complains if it no longer does.
"""

# pyright: strict, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# The latter two, because the parameters of a lambda cannot be annotated.

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, assert_type

from singleflight import (
    Busy,
    Conflict,
    Event,
    Holder,
    Kind,
    Lease,
    LeaseLost,
    Outcome,
    Reason,
    SingleflightError,
    Singleton,
    Status,
    StoreUnavailable,
    current_lease,
    lease,
    peek,
    try_lease,
)
from singleflight.events import Listener, Notify
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from singleflight.stores.base import Store


def once(store: Store | str) -> str:
    """Match the two answers: were there a third, the checkers would miss a return."""
    match try_lease(store, "nightly", ttl=30, window=timedelta(hours=1), run_id="2026-11-29"):
        case Lease() as granted:
            assert_type(granted, Lease)
            assert_type(granted.release(Outcome.FINISHED), bool)
            return granted.run_id
        case Busy(reason=reason, holder=holder) as busy:
            assert_type(reason, Reason)
            assert_type(holder, Holder | None)
            assert_type(busy.retry_after, float)
            return str(busy)


def narrowed(store: Store) -> int:
    """Tell the answers apart by type."""
    answer = try_lease(store, "nightly")
    assert_type(answer, Lease | Busy)
    if isinstance(answer, Busy):
        return 0
    with answer as held:
        assert_type(held, Lease)
        return held.fence


def leader(store: Store) -> None:
    """Hold a lease for a block."""
    try:
        with lease(store, "leader", wait=None) as held:
            assert_type(held, Lease)
            assert_type(held.held, bool)
            assert_type(held.expires_in, float)
            held.ensure(5)
            held.check()
        with lease(store, "leader", wait=timedelta(seconds=5), ttl=timedelta(minutes=1)):
            assert_type(current_lease(), Lease | None)
    except (Conflict, LeaseLost, StoreUnavailable) as error:
        assert_type(error, Conflict | LeaseLost | StoreUnavailable)
        _root: SingleflightError = error


def look(store: Store) -> float | None:
    """Ask whether it runs."""
    status = peek(store, "nightly")
    assert_type(status, Status)
    assert_type(status.outcome, Outcome | None)
    status.running = True  # type: ignore[misc]
    return status.age if status else None


def options() -> list[Singleton]:
    """Write options as the documentation does."""
    return [
        Singleton(),
        Singleton(by="account_id", on_conflict="coalesce"),
        Singleton(by=("tenant", "day"), ttl=0.5, window=timedelta(minutes=5)),
        Singleton(by=lambda order, **_: order["id"], at_most_one="waiting_or_running"),
        Singleton(by="*", give_up_after=None, max_hold=3600, on_store_error="raise", on_lost="abort"),
        Singleton(name="shared", skip_result={"skipped": True}),
        Singleton(on_conflict="queue"),  # type: ignore[arg-type]
        Singleton(ttl="30"),  # type: ignore[arg-type]
        Singleton("account_id"),  # type: ignore[call-arg]
    ]


def listen(event: Event) -> None:
    """Hear what happens."""
    assert_type(event.kind, Kind)
    assert_type(event.delay, float | None)
    event.run_id = "another"  # type: ignore[misc]


listener: Listener = listen
notify = Notify([listener])
store: Store = MemoryStore()

try_lease(store, name="nightly", ttl="30")  # type: ignore[arg-type]
try_lease(store, "nightly", 30)  # type: ignore[call-arg]
