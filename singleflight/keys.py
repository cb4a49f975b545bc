"""Task name + arguments -> key; pure.

Equal arguments give equal keys in every process, different ones different keys (SHA-256):

- None, True and False are themselves; True is not 1.
- An int and a float of the same value are one (1 = 1.0, 0 = -0.0), and so is every NaN. A Decimal is apart
  from both, and equal to a Decimal of the same value (1.10 = 1.1).
- Text is compared code point by code point, lone surrogates too; bytes, bytearray and memoryview are one.
- A list equals a tuple; mappings and sets are compared in any order, whatever their class.
- An aware datetime is its instant, a naive one its wall-clock time, and they never meet; a time of day is
  as written.
- An Enum member is its class and name (a Flag: its value), a dataclass instance its class and the fields
  that take part in comparison.
- Anything else is refused: a repr or an address would differ from process to process.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import NoneType
from typing import Any, Literal
from uuid import UUID

from singleflight.errors import ConfigurationError

MAX_PREFIX = 100
MAX_READABLE = 60
MAX_KEY = MAX_PREFIX + 1 + MAX_READABLE + 1 + 34
"""No key has more characters than this; stores may rely on it."""

MAX_DEPTH = 64
"""How deep arguments may nest; a structure that contains itself is deeper than any."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """How the calls of one task become keys; made, and checked, when the task is declared.

    Args:
        prefix: the first part of every key.
        task: the task's full name.
        signature: the task's parameters as callers see them, a bound ``self`` already dropped.
        by: () for the name only, parameter names, ``"*"``, or a callable that takes all arguments by keyword.
        by_given: False if ``by`` is () only because nobody gave it; `warnings` then says so.
        name: used instead of the task's name, so that tasks share keys.

    Raises:
        ConfigurationError: if ``by`` does not fit the signature, or the prefix cannot stand in a key.
    """

    prefix: str
    task: str
    signature: inspect.Signature
    by: tuple[str, ...] | Literal["*"] | Callable[..., object] = ()
    by_given: bool = True
    name: str | None = None

    def __post_init__(self) -> None:
        _check_prefix(self.prefix)
        if callable(self.by):
            self._check_callable(self.by)
        elif self.by != "*" and self._extra is None:
            known = self.signature.parameters
            for name in self.by:
                if name not in known:
                    names = ", ".join(known) or "none"
                    raise ConfigurationError(
                        f"by={name!r} names no parameter of task {self.task}; its parameters are: {names}"
                    )

    @property
    def ignores_parameters(self) -> bool:
        """True if calls with different arguments are still the same work."""
        return self.by == () and bool(self.signature.parameters)

    def warnings(self) -> list[str]:
        """Return what looks unintended about this rule, one sentence each."""
        texts = []
        required = [
            parameter.name
            for parameter in self.signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if required and not self.by_given:
            texts.append(
                f"task {self.task} takes {', '.join(required)}, but its key is its name only: calls with "
                f"different arguments are duplicates; write by={required[0]!r} or by='*', or by=() if meant"
            )
        if self.name is None and self.task.split(".")[0] == "__main__":
            texts.append(
                f"task {self.task} is named after the script that was started: elsewhere it has another name "
                "and another key; give the task an explicit name"
            )
        return texts

    def key(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
        """Return the key of a call, or None if its arguments do not bind.

        None means: take no lease, and let the call raise its own TypeError.

        Raises:
            ConfigurationError: if an argument that counts has a type that has no canonical form, or the
                ``by`` callable failed. The message names the argument and its type, never its value.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        named = bound.arguments
        extra = self._extra
        more: dict[str, object] = named[extra] if extra else {}
        parts: dict[str, object]
        if callable(self.by):
            own = {name: value for name, value in named.items() if name != extra}
            parts = {"by": self._call(self.by, {**more, **own})}
        elif self.by == "*":
            parts = named
        else:
            known = {**more, **named}
            parts = {name: known[name] for name in self.by if name in known}
        encoded = [_encode_argument(self.task, name, parts[name]) for name in sorted(parts)]
        source = b"callable" if callable(self.by) else b"arguments"
        return _key_text(self.prefix, self.name or self.task, [source, *encoded] if encoded else [])

    @property
    def _extra(self) -> str | None:
        """The name of the ``**kwargs`` parameter, if there is one."""
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                return parameter.name
        return None

    def _call(self, by: Callable[..., object], arguments: dict[str, object]) -> object:
        try:
            return by(**arguments)
        except Exception as exc:
            raise ConfigurationError(
                f"by= of task {self.task} raised {type(exc).__name__}; it must return a value for every call"
            ) from exc

    def _check_callable(self, by: Callable[..., object]) -> None:
        extra = self._extra
        names = [name for name in self.signature.parameters if name != extra]
        try:
            theirs = inspect.signature(by)
            theirs.bind(**dict.fromkeys(names))
            fits = extra is None or any(p.kind is p.VAR_KEYWORD for p in theirs.parameters.values())
        except (TypeError, ValueError):
            fits = False
        if not fits:
            some = f"{names[0]}, **_: {names[0]}" if names else "**arguments: arguments['id']"
            raise ConfigurationError(
                f"by={getattr(by, '__qualname__', type(by).__name__)} cannot take the arguments of task "
                f"{self.task} by keyword ({', '.join(self.signature.parameters)}); write by=lambda {some}"
            )


def lease_key(prefix: str, name: str) -> str:
    """Return the key of a plain lease; a task of that ``name`` with ``by=()`` has the same.

    Raises:
        ConfigurationError: if the name is empty or the prefix cannot stand in a key.
    """
    _check_prefix(prefix)
    if not name.strip():
        raise ConfigurationError(f"name={name!r} names no lease; give a non-empty text, such as 'nightly'")
    return _key_text(prefix, name, [])


def _check_prefix(prefix: str) -> None:
    printable = prefix.isprintable() and " " not in prefix
    if not prefix or len(prefix) > MAX_PREFIX or not printable:
        raise ConfigurationError(
            f"prefix={prefix[:MAX_PREFIX]!r} cannot begin a key; give 1 to {MAX_PREFIX} characters, no blanks"
        )


def _key_text(prefix: str, name: str, arguments: list[bytes]) -> str:
    whole = _join(b"k", [_text(name), *(_chunk(b"a", argument) for argument in arguments)])
    digest = hashlib.sha256(whole).hexdigest()[:32]
    # "script" cannot form a new "__main__" with what stands around it.
    readable = name.replace("__main__", "script")[-MAX_READABLE:]
    readable = "".join(c if c.isprintable() and c not in " {}:" else "_" for c in readable)
    return f"{prefix}:{readable}:{{{digest}}}"


class _UnfitError(Exception):
    """Raised when a value has no canonical form; the text says why, without the value."""


def _encode_argument(task: str, name: str, value: object) -> bytes:
    try:
        return _text(name) + _encode(value, MAX_DEPTH)
    except _UnfitError as exc:
        raise ConfigurationError(
            f"argument {name!r} of task {task} cannot be part of a key: {exc}; leave it out of `by`, "
            "or let by=lambda ... return a plain value such as an id"
        ) from exc


def _chunk(tag: bytes, data: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(data), data)


def _join(tag: bytes, parts: list[bytes]) -> bytes:
    # Each part says where it ends, so a count is enough to tell where the whole ends.
    return b"%b%d:%b" % (tag, len(parts), b"".join(parts))


def _text(value: str) -> bytes:
    return _chunk(b"s", value.encode("utf-8", "surrogatepass"))


def _integer(value: int) -> bytes:
    # Hexadecimal, because Python refuses to write very large integers in decimal.
    return b"i%x;" % value


def _float(value: float) -> bytes:
    if value.is_integer():
        return _integer(int(value))
    return b"f%b;" % value.hex().encode()  # every NaN is "nan"


def _decimal(value: Decimal) -> bytes:
    if value.is_nan():
        return b"dnan;"
    # By hand: Decimal.normalize() would round to the caller's context.
    sign, digits, exponent = value.as_tuple()
    number = "".join(map(str, digits))
    significant = number.rstrip("0")
    if isinstance(exponent, int):
        exponent = exponent + len(number) - len(significant) if significant else 0
    return b"d%d,%b,%b;" % (
        sign if significant or value.is_infinite() else 0,
        significant.encode(),
        str(exponent).encode(),
    )


def _datetime(value: datetime) -> bytes:
    if value.utcoffset() is None:
        return _chunk(b"w", value.replace(tzinfo=None, fold=0).isoformat().encode())
    return b"z%x;" % ((value - _EPOCH) // _MICROSECOND)


def _class(value: object) -> bytes:
    kind = type(value)
    return _text(kind.__module__) + _text(kind.__qualname__)


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    NoneType: lambda _: b"n",
    bool: lambda value: b"T" if value else b"F",
    str: _text,
    int: _integer,
    float: _float,
    bytes: lambda value: _chunk(b"b", value),
    bytearray: lambda value: _chunk(b"b", bytes(value)),
    memoryview: lambda value: _chunk(b"b", value.tobytes()),
    datetime: _datetime,  # before date, whose subclass it is
    date: lambda value: _chunk(b"D", value.isoformat().encode()),
    time: lambda value: _chunk(b"t", value.isoformat().encode()),
    timedelta: lambda value: b"p%x;" % (value // _MICROSECOND),
    UUID: lambda value: _chunk(b"u", value.bytes),
    Decimal: _decimal,
}
"""How a value without parts is written, by its class."""


def _encode(value: object, depth: int) -> bytes:
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    if isinstance(value, Enum):
        own = _integer(value.value) if isinstance(value, Flag) else _text(value.name)
        return b"e" + _class(value) + own
    for kind, write in _PLAIN.items():
        if isinstance(value, kind):
            return write(value)
    return _encode_parts(value, depth)


def _encode_parts(value: object, depth: int) -> bytes:
    if depth == 0:
        raise _UnfitError(f"it nests more than {MAX_DEPTH} levels deep, or contains itself")
    depth -= 1
    if isinstance(value, list | tuple):
        return _join(b"l", [_encode(item, depth) for item in value])
    if isinstance(value, Mapping):
        return _join(b"m", sorted([_encode(k, depth) + _encode(v, depth) for k, v in value.items()]))
    if isinstance(value, AbstractSet):
        return _join(b"S", sorted([_encode(item, depth) for item in value]))
    if is_dataclass(value) and not isinstance(value, type):
        parts = [_text(f.name) + _encode(getattr(value, f.name), depth) for f in fields(value) if f.compare]
        return b"o" + _class(value) + _join(b"l", parts)
    kind = type(value)
    raise _UnfitError(f"{kind.__module__}.{kind.__qualname__} has no form that is equal in every process")
