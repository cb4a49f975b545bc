"""Eager runs and direct calls: no store is needed, and with one they end as they would in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from singleflight import Conflict, Singleton, Skipped, StoreUnavailable, current_lease, lease
from singleflight.celery import install
from singleflight.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from singleflight.lease import Busy, Granted
    from singleflight.stores.base import Claim

NOWHERE = "redis://127.0.0.1:1/0"


class Away(MemoryStore):
    """A store that never answers a claim."""

    def claim(self, claim: Claim) -> Granted | Busy:
        """Do not answer."""
        raise StoreUnavailable(f"no answer about {claim.key}")


@pytest.fixture
def app() -> Iterator[Celery]:
    """Return an eager app whose broker and result backend nobody may ask."""
    app = Celery("eager", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
    app.conf.task_always_eager = True
    yield app
    app.close()


def test_scenario_82_eager_runs_need_no_store(app: Celery) -> None:
    """With nothing reachable, eager runs, direct calls and self-calls just run, each time."""
    install(app, NOWHERE)

    @app.task(shared=False, name="eager", singleton=True, track_started=True)
    def eager(again: bool = True) -> list[object]:
        return [current_lease(), *(eager.delay(again=False).result if again else [])]

    assert [eager.delay().get() for _ in range(20)] == [[None, None]] * 20
    assert eager(again=False) == [None]
    assert eager.run(again=False) == [None]


def test_scenario_82_an_eager_task_that_calls_itself_does_not_hang(app: Celery) -> None:
    """With leases in eager runs, the inner run of the same key is skipped as in a worker; it never waits."""
    install(app, MemoryStore(), eager=True)

    @app.task(shared=False, name="recursive", singleton=True)
    def recursive(again: bool = True) -> list[str]:
        return [recursive.delay(again=False).state, recursive(again=False)[0]] if again else ["ran"]

    assert recursive.delay().get() == ["REVOKED", "ran"]
    assert recursive.delay().get() == ["REVOKED", "ran"]


def nested(app: Celery, inner: dict[str, Any], how: str = "apply_async") -> Any:
    """Run a task eagerly that holds its lease while it publishes itself with options."""

    @app.task(shared=False, name="nested", singleton=Singleton(by="key"))
    def task(key: str, inner: bool = False) -> Any:
        if inner:
            return "ran"
        return getattr(task, how)((key,), {"inner": True}, **options)

    options = inner
    return task.delay("key").result


@pytest.mark.parametrize("how", ["apply_async", "apply"])
def test_an_eager_skip_ends_as_in_a_worker(app: Celery, how: str) -> None:
    """REVOKED, and get() raises Skipped; no result backend is asked."""
    install(app, MemoryStore(), eager=True)
    result = nested(app, {}, how)

    assert result.state == "REVOKED"
    with pytest.raises(Skipped):
        result.get(disable_sync_subtasks=False)


def test_an_eager_skip_returns_the_skip_result(app: Celery) -> None:
    """Skip_result is the result of an eager duplicate too."""
    install(app, MemoryStore(), eager=True)
    result = nested(app, {"singleton": Singleton(skip_result=["none"])})

    assert (result.state, result.result) == ("SUCCESS", ["none"])


@pytest.mark.parametrize("how", ["apply_async", "apply"])
def test_a_call_can_do_without_a_lease_in_eager_runs(app: Celery, how: str) -> None:
    """singleton=False reaches an eager run although its headers are not spread over its request."""
    install(app, MemoryStore(), eager=True)

    assert nested(app, {"singleton": False}, how).result == "ran"


def test_an_eager_conflict_raises(app: Celery) -> None:
    """on_conflict="raise" fails the eager run with Conflict."""
    store = MemoryStore()
    install(app, store, eager=True)

    @app.task(shared=False, name="refused", singleton=Singleton(name="taken", on_conflict="raise"))
    def refused() -> None:
        raise AssertionError

    with lease(store, "taken"):
        result = refused.delay()

    assert result.state == "FAILURE"
    assert isinstance(result.result, Conflict)


def test_an_eager_run_that_would_be_deferred_is_skipped(app: Celery) -> None:
    """There is no later in an eager run, and nothing is published."""
    install(app, MemoryStore(), eager=True)

    assert nested(app, {"singleton": Singleton(on_conflict="defer")}).state == "REVOKED"


@pytest.mark.parametrize(
    ("policy", "state"), [("defer", "FAILURE"), ("raise", "FAILURE"), ("skip", "REVOKED"), ("run", "SUCCESS")]
)
def test_an_eager_run_without_its_store_ends_at_once(app: Celery, policy: Any, state: str) -> None:
    """The store is away: what would come back later in a worker fails, because nothing can be published."""
    install(app, Away(), eager=True)

    @app.task(shared=False, name="away", singleton=Singleton(on_store_error=policy))
    def away() -> str:
        return "ran"

    result = away.delay()

    assert result.state == state
    if policy in ("defer", "raise"):
        assert isinstance(result.result, StoreUnavailable)


def test_an_eager_lease_is_given_back(app: Celery) -> None:
    """Runs one after the other all get the lease, whether they return or raise."""
    install(app, MemoryStore(), eager=True)

    @app.task(shared=False, name="sequence", singleton=Singleton(by=()))
    def sequence(fail: bool) -> bool:
        if fail:
            raise ValueError
        return current_lease() is not None

    states = [sequence.delay(fail).state for fail in (False, True, False)]
    assert states == ["SUCCESS", "FAILURE", "SUCCESS"]
