"""What all parts of the contract share: what a store may declare, and short ways to ask it things."""
# ruff: noqa: S101 - tests assert

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from singleflight.lease import Busy, Granted, Holder, Outcome
from singleflight.stores.base import Claim, Look, Release, Renewal

if TYPE_CHECKING:
    from singleflight.errors import SingleflightError
    from singleflight.stores.base import Renewed, Store

LONG = 60_000
"""Milliseconds that no test lasts: what must not lapse is given this."""


class Rules:
    """Capabilities of the store under test, and builders of requests with plain defaults."""

    tick: ClassVar[float] = 0.05
    """Seconds of the shortest lease that the store keeps exactly."""

    clock_error: ClassVar[float] = 0.0
    """Seconds by which an end may be later than asked, if the store knows its clock no better."""

    can_advance: ClassVar[bool] = False
    """True if the ``clock`` fixture is a `FakeClock` that also decides when a record is forgotten."""

    counts_refusals: ClassVar[bool] = False
    """True if the store counts refused claims; one that compares and sets need not, see `record.claim`."""

    def lose(self, store: Store, key: str) -> None:
        """Make the store lose the record of a key, as a flush or an empty replica does."""
        raise NotImplementedError(f"{type(self).__name__} must say how {store!r} can lose {key}")

    @property
    def short(self) -> int:
        """Milliseconds of a lease that is to lapse while the test waits."""
        return round(self.tick * 1000)

    @property
    def lapse(self) -> float:
        """Seconds after which whatever was given `short` is over."""
        return 2 * self.tick + self.clock_error

    @property
    def late(self) -> int:
        """Milliseconds by which an end may be later than asked."""
        return round(self.clock_error * 1000)


def token_of(run: str, attempt: int = 0) -> str:
    """Return the token that these tests give to the first delivery of an attempt."""
    return f"token-{run}-{attempt}"


def claim(store: Store, key: str, run: str, attempt: int = 0, **more: Any) -> Granted | Busy:
    """Claim for the first delivery of a run's attempt, unless ``token`` says otherwise."""
    given: dict[str, Any] = {"token": token_of(run, attempt), "ttl_ms": LONG, **more}
    return store.claim(Claim(key, run, attempt, **given))


def granted(store: Store, key: str, run: str, attempt: int = 0, **more: Any) -> Granted:
    """Claim, and insist on a yes."""
    answer = claim(store, key, run, attempt, **more)
    assert isinstance(answer, Granted), f"{key}: run {run} was refused: {answer}"
    return answer


def refused(store: Store, key: str, run: str, attempt: int = 0, **more: Any) -> Busy:
    """Claim, and insist on a no."""
    answer = claim(store, key, run, attempt, **more)
    assert isinstance(answer, Busy), f"{key}: run {run} was granted: {answer}"
    return answer


def renew(store: Store, key: str, run: str, grant: Granted, **more: Any) -> Renewed | SingleflightError:
    """Renew the lease of a grant."""
    given: dict[str, Any] = {"token": token_of(run), "ttl_ms": LONG, **more}
    (answer,) = store.renew(
        [
            Renewal(
                key,
                run,
                0,
                fence=grant.fence,
                started_ms=grant.started_ms,
                opens_ms=grant.opens_ms,
                **given,
            )
        ]
    )
    return answer


def release(
    store: Store, key: str, run: str, outcome: Outcome = Outcome.FINISHED, attempt: int = 0, **more: Any
) -> bool:
    """Release for the first delivery of a run's attempt, unless ``token`` says otherwise."""
    given: dict[str, Any] = {"token": token_of(run, attempt), **more}
    return store.release(Release(key, run, attempt, outcome=outcome, **given))


def ran(store: Store, key: str, run: str, outcome: Outcome = Outcome.FINISHED, **more: Any) -> Granted:
    """Let a run start and end."""
    grant = granted(store, key, run, **more)
    assert release(store, key, run, outcome)
    return grant


def look(store: Store, key: str) -> Look:
    """Read a record that must be there."""
    found = store.peek(key)
    assert found is not None, f"{key}: there is no record"
    return found


HOLDER = Holder("shop.nightly_report", "worker-1", 4711)
