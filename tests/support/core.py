"""The core without a server: a store whose line can be cut, and a keeper that a test drives by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from singleflight.errors import StoreUnavailable
from singleflight.events import Notify
from singleflight.keys import lease_key
from singleflight.lease import Lease
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.leases.keeper import Keeper
from singleflight.log import logger
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from singleflight.events import Event, Kind
    from singleflight.lease import Busy, Granted
    from singleflight.stores.base import Claim, Look, Record, Release, Renewal, Renewed

Answer = TypeVar("Answer")

AWAY = "the line is cut"


def _nothing(_operation: str) -> None:
    pass


class Line:
    """A `MemoryStore` at the end of a line: ``before`` each request and ``after`` it, a test may strike."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.inner = MemoryStore(clock=clock)
        self.calls: list[str] = []
        self.batches: list[int] = []
        self.before: Callable[[str], None] = _nothing
        self.after: Callable[[str], None] = _nothing

    @property
    def remember(self) -> float:
        """See `Store.remember`."""
        return self.inner.remember

    def cut(self) -> None:
        """Let no request through."""
        self.before = self._refuse

    def deafen(self) -> None:
        """Let requests through and lose every reply."""
        self.after = self._refuse

    def mend(self) -> None:
        """Let everything through again."""
        self.before = self.after = _nothing

    def claim(self, claim: Claim) -> Granted | Busy:
        """See `Store.claim`."""
        return self._through("claim", lambda: self.inner.claim(claim))

    def renew(self, renewals: Sequence[Renewal]) -> Sequence[Renewed]:
        """See `Store.renew`."""
        self.batches.append(len(renewals))
        return self._through("renew", lambda: self.inner.renew(renewals))

    def release(self, release: Release) -> bool:
        """See `Store.release`."""
        return self._through("release", lambda: self.inner.release(release))

    def queue(self, key: str, run_id: str, *, ttl_ms: int, running_too: bool) -> Busy | None:
        """See `Store.queue`."""
        return self._through(
            "queue", lambda: self.inner.queue(key, run_id, ttl_ms=ttl_ms, running_too=running_too)
        )

    def unqueue(self, key: str, run_id: str) -> bool:
        """See `Store.unqueue`."""
        return self._through("unqueue", lambda: self.inner.unqueue(key, run_id))

    def evict(self, key: str) -> bool:
        """See `Store.evict`."""
        return self._through("evict", lambda: self.inner.evict(key))

    def peek(self, key: str) -> Look | None:
        """See `Store.peek`."""
        return self._through("peek", lambda: self.inner.peek(key))

    def close(self) -> None:
        """See `Store.close`."""
        self.inner.close()

    def record(self, key: str) -> Record:
        """Read a record past the line."""
        look = self.inner.peek(key)
        assert look is not None, f"no record of {key}"
        return look.record

    def _through(self, operation: str, ask: Callable[[], Answer]) -> Answer:
        self.calls.append(operation)
        self.before(operation)
        answer = ask()
        self.after(operation)
        return answer

    @staticmethod
    def _refuse(_operation: str) -> None:
        raise StoreUnavailable(AWAY)


class Still:
    """In the place of a `Watch`: nobody looks but the test."""

    def __init__(self) -> None:
        self.roused: list[float] = []

    started = False

    def start(self) -> None:
        """Start nothing."""

    def rouse(self, by: float) -> None:
        """Note by when to look, and start nothing."""
        self.roused.append(by)

    ring = rouse

    def stop(self, patience: float) -> None:
        """Stop nothing."""


class AtOnce:
    """In the place of `Lanes`: work is done where it is asked for."""

    def ready(self) -> None:
        """Start nothing."""

    def put(self, _lane: Hashable, work: Callable[[], object]) -> None:
        """Do it."""
        try:
            work()
        except BaseException:  # noqa: BLE001 - as in a thread
            logger.exception("unexpected")

    def stop(self, patience: float) -> None:
        """Stop nothing."""


class HandDriven(Keeper):
    """A `Keeper` without threads: a test lets time pass and calls `look`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.timer = self._timer = Still()  # type: ignore[assignment]
        self._threads = self._telling._threads = AtOnce()  # type: ignore[assignment]


@dataclass
class Core:
    """One process with leases in one store; its clock is the store's clock too."""

    clock: FakeClock = field(default_factory=FakeClock)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Line(self.clock)
        self.keeper = HandDriven(self.clock)
        self.leases = Leases(self.store, Notify([self.events.append]))

    def request(self, name: str = "nightly", **options: object) -> Request:
        """Return a new run's request."""
        token = new_token()
        request = Request(key=lease_key("t", name), task=name, run_id=f"run-{token[:8]}", token=token)
        return request._replace(**options)  # type: ignore[arg-type]

    def claim(self, name: str = "nightly", **options: object) -> Lease:
        """Claim and expect a grant; ``on_lost`` and ``owner`` go to the keeper, the rest to the request."""
        watching = {key: options.pop(key) for key in ("on_lost", "owner") if key in options}
        answer = self.leases.claim(self.request(name, **options), anyway=True, **watching)  # type: ignore[arg-type]
        assert isinstance(answer, Lease), answer
        return answer

    def kinds(self) -> list[Kind]:
        """Return what happened, in order."""
        return [event.kind for event in self.events]

    def live(self, lease: Lease) -> bool:
        """Say whether the store still counts the lease as held."""
        record = self.store.record(lease.key)
        return record.held and record.expires_ms > self.clock() * 1000

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass in steps, the keeper looking after each."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.keeper.look()
