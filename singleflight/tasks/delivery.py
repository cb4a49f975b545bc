"""One arrival of a run's message at a worker, as its framework's adapter has read it; what it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singleflight.lease import Outcome
from singleflight.leases.claiming import Request
from singleflight.stores.base import Release, Waits
from singleflight.tasks.decisions import slot_wait
from singleflight.tasks.keyless import key_of_run
from singleflight.tasks.message import Carried

if TYPE_CHECKING:
    from collections.abc import Mapping

    from singleflight.key_rules import KeyRule
    from singleflight.policy import Policy


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a message says about its run; all of it is its author's word, but for the token."""

    run_id: str
    attempt: int
    token: str
    args: Any
    kwargs: Any
    carried: Carried = field(default_factory=Carried)
    redelivered: bool = False
    parent_id: str | None = None
    """The run that has published this one, where the framework says so."""
    headers: Mapping[str, Any] = field(default_factory=dict)
    """Those of the caller, without ours."""

    @property
    def returning(self) -> bool:
        """True if the run may have started before: a retry, or a message that is delivered again."""
        return self.redelivered or self.attempt > 0

    @property
    def must_run(self) -> bool:
        """True if the run is no duplicate whatever it meets: it returns, or was deferred as such."""
        return self.returning or self.carried.must_run

    def leaving(self, key: str) -> Release:
        """Return what ends its run, which waits for a key, without its body having run."""
        return Release(key, self.run_id, self.attempt, self.token, Outcome.CANCELLED)

    def request(
        self, rule: KeyRule, policy: Policy, *, observing: bool, lines: bool = False
    ) -> Request | None:
        """Return what it asks the store for; None if its arguments do not fit the task.

        Args:
            rule: how calls of its task become keys.
            policy: what holds for it.
            observing: whether everything runs.
            lines: whether those who are refused wait in a line, where nobody needs a reservation.

        Raises:
            ConfigurationError: if they can make no key, unless ``observing``.
        """
        key = key_of_run(
            rule, self.args, self.kwargs, headers=self.headers, run_id=self.run_id, observing=observing
        )
        if key is None:
            return None
        carried, must_run = self.carried, self.must_run
        # A run that joins, or is about to be skipped after an outage of the store, needs no slot of its own:
        # its reservation would only keep others out.
        may_go_first = must_run or policy.one_waits or policy.on_conflict == "defer"
        goes_first = not lines and carried.goes_first and may_go_first and carried.joins is None
        waits = policy.one_waits or goes_first or (policy.at_publish and must_run)
        return Request(
            key=key,
            task=rule.task,
            run_id=self.run_id,
            token=self.token,
            attempt=self.attempt,
            ttl=policy.ttl,
            window=policy.window,
            wait=slot_wait(carried.deferrals) if waits else 0.0,
            waits=Waits.FIRST if goes_first else Waits.PASSED,
            max_hold=policy.max_hold,
            # Of a body that runs without an answer from the store nobody can say that it never began.
            returning=must_run or policy.on_store_error == "run",
            call_no=carried.call_no,
            order=carried.order,
        )
