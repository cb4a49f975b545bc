"""What a task may ask for: the options of `Singleton`, and the `Policy` they resolve to; pure."""

from __future__ import annotations

import difflib
import functools
import json
import reprlib
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, get_args

from singleflight.errors import ConfigurationError

OnConflict = Literal["skip", "defer", "coalesce", "raise", "join"]
AtMostOne = Literal["running", "waiting_or_running", "waiting_and_running"]
OnStoreError = Literal["defer", "run", "skip", "raise"]
OnLost = Literal["warn", "abort"]
By = tuple[str, ...] | Literal["*"] | Callable[..., object]


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return self.value


UNSET: Final = Unset.UNSET
"""Stands for an option that nobody has given; unlike None, it is never a value."""

SHORTEST = 0.001
"""Stores keep whole milliseconds, so nothing shorter can be promised."""

LONGEST = 10 * 366 * 86400.0
"""Ten years: a longer duration is a unit mix-up, and some stores could not count that far."""


def _refusal(option: str, value: object, why: str) -> ConfigurationError:
    return ConfigurationError(f"{option}={reprlib.repr(value)} {why}")


def _seconds(option: str, value: object, *, zero: bool = False, endless: bool = False) -> float | None:
    if value is None and endless:
        return None
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise _refusal(option, value, f"is not a duration; write seconds ({option}=30) or a timedelta")
    # Written so that NaN fails too; compared before float(), which a huge int would overflow.
    if not ((zero and given == 0) or SHORTEST <= given <= LONGEST):
        least = "0 or " if zero else ""
        raise _refusal(
            option, value, f"is not a possible duration; give {least}from 1 ms up to ten years, in seconds"
        )
    return float(given)


def _choice(choices: tuple[str, ...], option: str, value: object) -> str:
    if isinstance(value, str) and value in choices:
        return str(value)
    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise _refusal(option, value, f"is unknown; {hint}Choose one of {', '.join(map(repr, choices))}")


def _name(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refusal(option, value, "is not a lease name; give a non-empty text, such as name='nightly'")
    return str(value)


def _by(option: str, value: object) -> By:
    if value == "*" and isinstance(value, str):
        return "*"
    if isinstance(value, list | tuple | AbstractSet):
        names = tuple(value)
    elif isinstance(value, str):
        names = (value,)
    elif callable(value) and not isinstance(value, type):
        return value
    else:
        raise _refusal(option, value, "is no parameter name, sequence of names, '*' or function; see `by`")
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            remedy = (
                "write by='*'" if name == "*" else "for a part of an argument write by=lambda x, **_: x['id']"
            )
            raise _refusal(option, value, f"names {name!r}, which is not a parameter name; {remedy}")
    return tuple(sorted(set(names)))


def _anything(_option: str, value: object) -> object:
    return value


_CHECKS: Mapping[str, Callable[[str, object], object]] = MappingProxyType(
    {
        "by": _by,
        "window": functools.partial(_seconds, zero=True),
        "on_conflict": functools.partial(_choice, get_args(OnConflict)),
        "at_most_one": functools.partial(_choice, get_args(AtMostOne)),
        "ttl": _seconds,
        "name": _name,
        "skip_result": _anything,
        "give_up_after": functools.partial(_seconds, endless=True),
        "max_hold": functools.partial(_seconds, endless=True),
        "on_store_error": functools.partial(_choice, get_args(OnStoreError)),
        "on_lost": functools.partial(_choice, get_args(OnLost)),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Singleton:
    """The options of a task that must not run twice; what is not given is decided by the next layer.

    Durations are seconds (int or float, milliseconds are kept) or a `timedelta`.

    Args:
        by: what besides the task's name makes the key: a parameter name, a sequence of names, ``"*"``
            (all arguments), or a callable that gets all arguments by keyword. Built in: the name only.
        window: no new run may start within this long of the last start. Built in: 0.
        on_conflict: what becomes of a duplicate: ``"skip"`` (built in), ``"defer"``, ``"coalesce"``,
            ``"raise"`` or ``"join"``.
        at_most_one: what is counted: ``"running"`` (built in), ``"waiting_or_running"`` or
            ``"waiting_and_running"``.
        ttl: how long a lease lives after its last renewal: the longest that a dead worker can block.
            Built in: 30.
        name: names the lease instead of the task's name, so that tasks can share one.
        skip_result: what a skipped run returns; without it, a skipped run ends as revoked.
        give_up_after: the longest that a duplicate waits before it is skipped; None (built in): no limit.
        max_hold: a run that takes longer is no longer renewed; None (built in): no limit.
        on_store_error: while the store is away: ``"defer"`` (built in), ``"run"``, ``"skip"``, ``"raise"``.
        on_lost: when a running task loses its lease: ``"warn"`` (built in) or ``"abort"``.

    Raises:
        ConfigurationError: for a value that can never work, naming option, value and remedy.
    """

    by: Collection[str] | Callable[..., object] | Unset = UNSET
    window: float | timedelta | Unset = UNSET
    on_conflict: OnConflict | Unset = UNSET
    at_most_one: AtMostOne | Unset = UNSET
    ttl: float | timedelta | Unset = UNSET
    name: str | Unset = UNSET
    skip_result: object = UNSET
    give_up_after: float | timedelta | Unset | None = UNSET
    max_hold: float | timedelta | Unset | None = UNSET
    on_store_error: OnStoreError | Unset = UNSET
    on_lost: OnLost | Unset = UNSET

    def __post_init__(self) -> None:
        for option, value in self._given().items():
            object.__setattr__(self, option, _CHECKS[option](option, value))

    def __init_subclass__(cls, **_: object) -> NoReturn:
        # Celery makes a class of each task, so `base=Singleton` arrives here.
        raise ConfigurationError(
            f"{cls.__name__}: Singleton holds a task's options and is no base class; "
            f"instead of base=Singleton write @app.task(singleton=True), "
            f"or @app.task(singleton=Singleton(by='user_id')) where celery-singleton had unique_on"
        )

    def __repr__(self) -> str:
        return f"Singleton({', '.join(f'{option}={value!r}' for option, value in self._given().items())})"

    def _given(self) -> dict[str, object]:
        return {option: value for option in _CHECKS if (value := getattr(self, option)) is not UNSET}

    @classmethod
    def from_option(cls, value: object) -> Singleton | None:
        """Read what stands after ``singleton=``: True, False, None or a `Singleton`; None means no lease.

        Raises:
            ConfigurationError: for anything else, saying what to write.
        """
        if value is True:
            return cls()
        if value is False or value is None:
            return None
        if isinstance(value, cls):
            return value
        raise _refusal(
            "singleton", value, "is not an option; write singleton=True, or singleton=Singleton(by='user_id')"
        )

    def to_header(self) -> dict[str, object]:
        """Return the given options as JSON keeps them, to travel in a message header.

        Raises:
            ConfigurationError: if ``by`` is a callable, or JSON would not keep ``skip_result`` as it is.
        """
        header = self._given()
        if callable(self.by):
            raise _refusal(
                "by", self.by, "cannot travel in a message; name parameters, or declare it on the task"
            )
        if isinstance(self.by, tuple):
            header["by"] = list(self.by)
        if self.skip_result is not UNSET and not _survives_json(self.skip_result):
            kind = type(self.skip_result).__name__
            raise ConfigurationError(
                f"skip_result of type {kind} would not come out of JSON as it went in; "
                "use text, numbers, None, lists and dicts, or declare it on the task"
            )
        return header

    @classmethod
    def from_header(cls, header: object) -> Singleton:
        """Read what `to_header` wrote; the header may come from anyone, so all of it is checked.

        Raises:
            ConfigurationError: if it is no mapping, or has an unknown option or value.
        """
        if not isinstance(header, Mapping):
            raise _refusal("singleton header", header, "is not a mapping of options")
        for option in header:
            if option not in _CHECKS:
                raise _refusal("singleton header", option, "is an unknown option; is this version older?")
        return cls(**header)


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
    on_store_error: OnStoreError
    on_lost: OnLost

    @property
    def at_publish(self) -> bool:
        """True if a duplicate can already be recognised when it is published."""
        return self.at_most_one != "running"

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
_ONE_WAITS = "one waits and runs after the running one; further ones are skipped"

EFFECTS: Mapping[tuple[AtMostOne, OnConflict], Effect] = MappingProxyType(
    {
        ("running", "skip"): Effect(_SENT, "is skipped"),
        ("running", "defer"): Effect(_SENT, "comes back later, every one"),
        ("running", "coalesce"): Effect(_SENT, _ONE_WAITS),
        ("running", "raise"): Effect(_SENT, "fails with Conflict"),
        ("running", "join"): Effect(_SENT, "takes over the result of the running one"),
        ("waiting_or_running", "skip"): Effect(_GETS_RESULT, "is skipped"),
        ("waiting_or_running", "raise"): Effect("Conflict is raised to the caller", "fails with Conflict"),
        ("waiting_or_running", "join"): Effect(_GETS_RESULT, "takes over the result of the running one"),
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
        (
            "waiting_or_running",
            "coalesce",
        ): "the coalesced one waits too; use at_most_one='waiting_and_running'",
        ("waiting_and_running", "defer"): "every duplicate would wait, not one; write on_conflict='coalesce'",
        ("waiting_and_running", "join"): "the one that waits must run, not join; write on_conflict='skip'",
    }
)
"""Every other pair, and what to write instead."""

_CALL, _TASK, _DEFAULTS, _BUILT_IN = range(4)


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
        raise _refusal(
            "name", defaults.name, "among the defaults would make all tasks one; give it to a task"
        )
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
        raise _refusal("on_conflict", pair[1], f"contradicts at_most_one={pair[0]!r}: {REFUSED[pair]}")
    if values["max_hold"] is not None and values["max_hold"] < values["ttl"]:
        why = f"is shorter than ttl={values['ttl']:g}, and no lease ends before its ttl; shorten ttl as well"
        raise _refusal("max_hold", values["max_hold"], why)
    chosen = min(layer["on_conflict"], layer["at_most_one"])
    waits = pair[1] in ("defer", "coalesce", "join") or pair[0] == "waiting_and_running"
    for option, nothing, fits, remedy in (
        ("give_up_after", None, waits, "where no duplicate waits; write on_conflict='defer' or leave it out"),
        ("skip_result", UNSET, pair[1] != "raise", "where no duplicate is skipped; leave one of them out"),
    ):
        if values[option] is nothing or fits:
            continue
        # Defaults speak to many tasks: what they say about waiting is meant for those that wait.
        if layer[option] <= chosen and not (layer[option] == _DEFAULTS and chosen == _BUILT_IN):
            raise _refusal(option, values[option], f"has no meaning beside on_conflict={pair[1]!r}, {remedy}")
        values[option] = nothing


def _survives_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
