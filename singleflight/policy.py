"""The `Policy` of a run: what call, task, defaults and built-in values come to; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from singleflight.options import UNSET, Singleton, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from singleflight.options import AtMostOne, By, OnConflict, OnLost, OnStoreError

__all__ = ["BUILT_IN", "EFFECTS", "REFUSED", "UNSET", "Effect", "Policies", "Policy", "Singleton", "resolve"]


SHORT_QUEUE = 60.0
"""Seconds that a published run may wait for a worker, and still be known, if nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The options of one run after all layers are resolved; made by `resolve`. Durations are seconds."""

    by: By
    by_given: bool
    """False if no layer gave ``by``: then the key is the name only, perhaps without anyone meaning it."""
    window: float
    on_conflict: OnConflict
    at_most_one: AtMostOne
    ttl: float
    name: str | None
    skip_result: object
    """`UNSET` if a skipped run has no result of its own."""
    give_up_after: float | None
    max_hold: float | None
    queue_ttl: float | None
    on_store_error: OnStoreError
    on_lost: OnLost

    @property
    def at_publish(self) -> bool:
        """True if a duplicate can already be recognised when it is published."""
        return self.at_most_one != "running"

    @property
    def queue_life(self) -> float:
        """Seconds for which a published run is known to wait after it is due."""
        # A lost message must not mute its key; a short queue may delay one.
        return max(self.ttl, SHORT_QUEUE) if self.queue_ttl is None else self.queue_ttl

    @property
    def one_waits(self) -> bool:
        """True if one duplicate asks for the waiting slot instead of being skipped."""
        return self.on_conflict == "coalesce" or self.at_most_one == "waiting_and_running"


BUILT_IN = Singleton(
    by=(),
    window=0,
    on_conflict="skip",
    at_most_one="running",
    ttl=30,
    give_up_after=None,
    max_hold=None,
    queue_ttl=None,
    on_store_error="defer",
    on_lost="warn",
)
"""The last layer; ``name`` and ``skip_result`` have no built-in value."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What becomes of a duplicate, by the side that meets it."""

    publish: str
    worker: str


_SENT = "is sent"
_GETS_RESULT = "is not sent; the caller gets the result of the run that waits or runs"
_GETS_WAITING = "is sent if none waits; else the caller gets the result of the one that waits"
_JOINS = "ends as the running one does"
_ONE_WAITS = "one waits and runs after the running one; further ones are skipped"

EFFECTS: Mapping[tuple[AtMostOne, OnConflict], Effect] = MappingProxyType(
    {
        ("running", "skip"): Effect(_SENT, "is skipped"),
        ("running", "defer"): Effect(_SENT, "comes back later, every one"),
        ("running", "coalesce"): Effect(_SENT, _ONE_WAITS),
        ("running", "raise"): Effect(_SENT, "fails with Conflict"),
        ("running", "join"): Effect(_SENT, _JOINS),
        ("waiting_or_running", "skip"): Effect(
            _GETS_RESULT,
            "is skipped; in Celery, if its publisher had looked, it ends as the running one does",
        ),
        ("waiting_or_running", "raise"): Effect("Conflict is raised to the caller", "fails with Conflict"),
        ("waiting_or_running", "join"): Effect(_GETS_RESULT, _JOINS),
        ("waiting_and_running", "skip"): Effect(_GETS_WAITING, _ONE_WAITS),
        ("waiting_and_running", "coalesce"): Effect(_GETS_WAITING, _ONE_WAITS),
        ("waiting_and_running", "raise"): Effect(
            "is sent if none waits; else Conflict is raised to the caller",
            "one waits and runs after the running one; further ones fail with Conflict",
        ),
    }
)
"""Every legal pair of ``at_most_one`` and ``on_conflict``, and what becomes of a duplicate under it."""

REFUSED: Mapping[tuple[AtMostOne, OnConflict], str] = MappingProxyType(
    {
        ("waiting_or_running", "defer"): "deferred duplicates would wait too; write at_most_one='running'",
        ("waiting_or_running", "coalesce"): "one more would wait; write at_most_one='waiting_and_running'",
        ("waiting_and_running", "defer"): "every duplicate would wait, not one; write on_conflict='coalesce'",
        ("waiting_and_running", "join"): "the one that waits must run, not join; write on_conflict='skip'",
    }
)
"""Every other pair, and what to write instead."""

_CALL, _TASK, _DEFAULTS, _BUILT_IN = range(4)

LONGEST_CALL = 86400.0
"""Seconds: no duration of a single call is longer, unless its task is declared with a longer one."""


def resolve(
    call: Singleton | None = None, task: Singleton | None = None, defaults: Singleton | None = None
) -> Policy:
    """Decide every option: the call's word goes before the task's, the defaults' and the built-in one.

    An inherited option that has no meaning beside a more specific choice is dropped; two options that
    contradict each other where they were chosen are refused.

    Raises:
        ConfigurationError: for a contradictory pair, or a ``name`` among the defaults.
    """
    if defaults is not None and defaults.name is not UNSET:
        raise refusal("name", defaults.name, "among the defaults would make all tasks one; give it to a task")
    values: dict[str, Any] = {}
    layer: dict[str, int] = {}
    for option in fields(Singleton):
        for depth, options in enumerate((call, task, defaults, BUILT_IN)):
            value = UNSET if options is None else getattr(options, option.name)
            values[option.name], layer[option.name] = value, depth
            if value is not UNSET:
                break
    _refuse_contradictions(values, layer)
    values["name"] = None if values["name"] is UNSET else values["name"]
    return Policy(by_given=layer["by"] != _BUILT_IN, **values)


def _refuse_contradictions(values: dict[str, Any], layer: dict[str, int]) -> None:
    pair = values["at_most_one"], values["on_conflict"]
    if pair in REFUSED:
        raise refusal("on_conflict", pair[1], f"contradicts at_most_one={pair[0]!r}: {REFUSED[pair]}")
    if values["max_hold"] is not None and values["max_hold"] < values["ttl"]:
        why = f"is shorter than ttl={values['ttl']:g}, and no lease ends before its ttl; shorten ttl as well"
        raise refusal("max_hold", values["max_hold"], why)
    chosen = min(layer["on_conflict"], layer["at_most_one"])
    waits = pair[1] in ("defer", "coalesce", "join") or pair[0] == "waiting_and_running"
    for option, nothing, fits, remedy in (
        ("give_up_after", None, waits, "where no duplicate waits; write on_conflict='defer' or leave it out"),
        ("skip_result", UNSET, pair[1] != "raise", "where no duplicate is skipped; leave one of them out"),
        (
            "queue_ttl",
            None,
            pair[0] != "running",
            "where nobody looks at the queue; leave it out, or write at_most_one='waiting_or_running'",
        ),
    ):
        if values[option] is nothing or fits:
            continue
        # Defaults speak to many tasks: what they say about waiting is meant for those that wait.
        if layer[option] <= chosen and not (layer[option] == _DEFAULTS and chosen == _BUILT_IN):
            beside = f"at_most_one={pair[0]!r}" if option == "queue_ttl" else f"on_conflict={pair[1]!r}"
            raise refusal(option, values[option], f"has no meaning beside {beside}, {remedy}")
        values[option] = nothing


def _refuse_too_long(call: Singleton, own: Policy | None) -> None:
    for option in ("window", "ttl", "give_up_after", "max_hold"):
        value = getattr(call, option)
        declared = None if own is None else getattr(own, option)
        endless = declared is None and option in ("give_up_after", "max_hold")
        longest = math.inf if endless else max(LONGEST_CALL, declared or 0.0)
        if value is not UNSET and (math.inf if value is None else value) > longest:
            why = f"is too long for a single call: at most {longest:g} s, or as long as the task declares"
            raise refusal(option, value, why)


class Policies:
    """What tasks' and calls' options come to; worked out once for calls that have none of their own.

    Args:
        defaults: returns the defaults; asked when the first task needs them.
    """

    def __init__(self, defaults: Callable[[], Singleton | None]) -> None:
        self._defaults = defaults
        self._known: dict[str, tuple[object, Policy | None]] = {}

    def of(self, task: str, option: object, call: object) -> Policy | None:
        """Return what holds for one run of a task; None if it takes no lease.

        Args:
            task: the task's name.
            option: its ``singleton``, as declared.
            call: that of the message, None if it has none.

        Raises:
            ConfigurationError: as `resolve`, and for an option that is none.
        """
        if call is None:
            known = self._known.get(task)
            if known is None or known[0] is not option:
                known = self._known[task] = option, self._resolve(option, None)
            return known[1]
        if not isinstance(call, Singleton):
            return None
        policy = self._resolve(option, call)
        _refuse_too_long(call, self._resolve(option, None))
        return policy

    def _resolve(self, option: object, call: object) -> Policy | None:
        declared = Singleton.from_option(option)
        if declared is None and call is None:
            return None
        return resolve(call if isinstance(call, Singleton) else None, declared, self._defaults())
