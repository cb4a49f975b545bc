"""What a task may ask for: the options of `Singleton`, checked when they are written; pure."""

from __future__ import annotations

import functools
import json
import reprlib
import sys
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Final, Literal, NoReturn, Self, get_args

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


ALIEN = "cannot be given for a single call: no message may choose another key's lease; declare it on the task"
"""Why ``name`` never travels: who may publish one task could otherwise close the keys of all others."""


def refusal(option: str, value: object, why: str) -> ConfigurationError:
    """Return the error for an option's value; ``why`` ends with what to write instead."""
    return ConfigurationError(f"{option}={reprlib.repr(value)} {why}")


def _seconds(option: str, value: object, *, zero: bool = False, endless: bool = False) -> float | None:
    if value is None and endless:
        return None
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise refusal(option, value, f"is not a duration; write seconds ({option}=30) or a timedelta")
    # Written so that NaN fails too; compared before float(), which a huge int would overflow.
    if not ((zero and given == 0) or SHORTEST <= given <= LONGEST):
        least = "0 or " if zero else ""
        raise refusal(
            option, value, f"is not a possible duration; give {least}from 1 ms up to ten years, in seconds"
        )
    return float(given)


def _choice(choices: tuple[str, ...], option: str, value: object) -> str:
    if isinstance(value, str) and value in choices:
        return str(value)
    import difflib  # noqa: PLC0415 - slow to load, and only a mistake needs it

    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise refusal(option, value, f"is unknown; {hint}Choose one of {', '.join(map(repr, choices))}")


def _name(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise refusal(option, value, "is not a lease name; give a non-empty text, such as name='nightly'")
    return str(value)


def _by(option: str, value: object) -> By:
    if isinstance(value, str) and value == "*":
        return "*"
    if isinstance(value, list | tuple | AbstractSet):
        names = tuple(value)
    elif isinstance(value, str):
        names = (value,)
    elif callable(value) and not isinstance(value, type):
        return value
    else:
        raise refusal(option, value, "is no choice of arguments; write by='user_id', by=('a', 'b') or by='*'")
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            remedy = (
                "write by='*'" if name == "*" else "for a part of an argument write by=lambda x, **_: x['id']"
            )
            raise refusal(option, value, f"names {name!r}, which is not a parameter name; {remedy}")
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
        "queue_ttl": functools.partial(_seconds, endless=True),
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
            ``"raise"`` or ``"join"``. Of those that coalesce, the first one waits and runs with its own
            arguments; further ones are skipped.
        at_most_one: what is counted: ``"running"`` (built in), ``"waiting_or_running"`` or
            ``"waiting_and_running"``.
        ttl: how long a lease lives after its last renewal: the longest that a dead worker can block.
            Built in: 30.
        name: names the lease instead of the task's name, so that tasks can share one.
        skip_result: what a skipped run returns; without it, a skipped run ends as revoked.
        give_up_after: the longest that a duplicate waits before it is skipped; None (built in): no limit.
        max_hold: a run that takes longer is no longer renewed; None (built in): no limit.
        queue_ttl: with ``at_most_one="waiting_..."``: how long a run that has been published is known to
            wait, counted from its ETA, if no worker takes it. Longer than the longest backlog, and as long as
            a message that gets lost may keep others out. Built in (None): a minute, or ``ttl`` if longer.
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
    queue_ttl: float | timedelta | Unset | None = UNSET
    on_store_error: OnStoreError | Unset = UNSET
    on_lost: OnLost | Unset = UNSET

    def __new__(cls, *_: object, **given: object) -> Self:
        """Refuse an option that there is not, naming the nearest one."""
        for option in given:
            if option not in _CHECKS:
                import difflib  # noqa: PLC0415 - slow to load, and only a mistake needs it

                near = difflib.get_close_matches(option, _CHECKS, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise ConfigurationError(f"{option} is no option; {hint}The options are {', '.join(_CHECKS)}")
        return object.__new__(cls)  # `super` is lost where slots make another class

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

    def __set_name__(self, owner: type, name: str) -> None:
        """Have our side of Celery loaded once a task has these options: it tells if nobody installs it.

        Celery makes a class of each task. Imported by name, because only a process that uses Celery has it.
        """
        of_celery = sys.modules.get("celery.app.task")
        if name == "singleton" and of_celery is not None and issubclass(owner, of_celery.Task):
            import_module("singleflight.celery")

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
        raise refusal(
            "singleton", value, "is not an option; write singleton=True, or singleton=Singleton(by='user_id')"
        )

    @classmethod
    def from_call(cls, value: object) -> Singleton | None:
        """Read ``singleton=`` of a single call: as `from_option`, or the mapping that a signature carries.

        Raises:
            ConfigurationError: for anything else, saying what to write.
        """
        return cls.from_header(value) if isinstance(value, Mapping) else cls.from_option(value)

    @classmethod
    def from_setting(cls, setting: str, value: object) -> Singleton | None:
        """Read the options that a setting gives to all tasks: a `Singleton`, or a mapping of its options.

        Raises:
            ConfigurationError: for anything else, naming the setting.
        """
        if value is None or isinstance(value, Singleton):
            return value
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{setting}={value!r} must be Singleton(...) or a dict of its options")
        try:
            return cls(**value)
        except (TypeError, ConfigurationError) as error:
            raise ConfigurationError(f"{setting}={value!r}: {error}") from None

    def to_header(self) -> dict[str, object]:
        """Return the given options as JSON keeps them, to travel in a message header.

        Raises:
            ConfigurationError: if there is a ``name``, if ``by`` is a callable, or if JSON would not keep
                ``skip_result`` as it is.
        """
        header = self._given()
        if self.name is not UNSET:
            raise refusal("name", self.name, ALIEN)
        if callable(self.by):
            raise refusal(
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
            ConfigurationError: if it is no mapping, or has a ``name``, or an unknown option or value.
        """
        if not isinstance(header, Mapping):
            raise refusal("singleton header", header, "is not a mapping of options")
        if "name" in header:
            raise refusal("name", header["name"], ALIEN)
        for option in header:
            if option not in _CHECKS:
                raise refusal("singleton header", option, "is an unknown option; is this version older?")
        return cls(**header)


def _survives_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
