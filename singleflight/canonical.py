"""A value -> bytes that are equal in every process; pure.

Equal values give equal bytes, different ones different bytes:

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

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import NoneType
from typing import Any
from uuid import UUID

MAX_DEPTH = 64
"""How deep a value may nest; a structure that contains itself is deeper than any."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class UnfitError(Exception):
    """Raised when a value has no canonical form; the text says why, without the value."""


def chunk(tag: bytes, data: bytes) -> bytes:
    """Return data with a tag and its length, so that it says where it ends."""
    return b"%b%d:%b" % (tag, len(data), data)


def join(tag: bytes, parts: list[bytes]) -> bytes:
    """Return parts, each of which says where it ends, as one that does."""
    # Each part says where it ends, so a count is enough to tell where the whole ends.
    return b"%b%d:%b" % (tag, len(parts), b"".join(parts))


def text(value: str) -> bytes:
    """Return the canonical form of a text."""
    return chunk(b"s", value.encode("utf-8", "surrogatepass"))


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
        return chunk(b"w", value.replace(tzinfo=None, fold=0).isoformat().encode())
    return b"z%x;" % ((value - _EPOCH) // _MICROSECOND)


def _class(value: object) -> bytes:
    kind = type(value)
    return text(kind.__module__) + text(kind.__qualname__)


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    NoneType: lambda _: b"n",
    bool: lambda value: b"T" if value else b"F",
    str: text,
    int: _integer,
    float: _float,
    bytes: lambda value: chunk(b"b", value),
    bytearray: lambda value: chunk(b"b", bytes(value)),
    memoryview: lambda value: chunk(b"b", value.tobytes()),
    datetime: _datetime,  # before date, whose subclass it is
    date: lambda value: chunk(b"D", value.isoformat().encode()),
    time: lambda value: chunk(b"t", value.isoformat().encode()),
    timedelta: lambda value: b"p%x;" % (value // _MICROSECOND),
    UUID: lambda value: chunk(b"u", value.bytes),
    Decimal: _decimal,
}
"""How a value without parts is written, by its class."""


def encode(value: object, depth: int = MAX_DEPTH) -> bytes:
    """Return the canonical form of a value.

    Raises:
        UnfitError: if it has none.
    """
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    if isinstance(value, Enum):
        own = _integer(value.value) if isinstance(value, Flag) else text(value.name)
        return b"e" + _class(value) + own
    for kind, write in _PLAIN.items():
        if isinstance(value, kind):
            return write(value)
    return _encode_parts(value, depth)


def _encode_parts(value: object, depth: int) -> bytes:
    if depth == 0:
        raise UnfitError(f"it nests more than {MAX_DEPTH} levels deep, or contains itself")
    depth -= 1
    if isinstance(value, list | tuple):
        return join(b"l", [encode(item, depth) for item in value])
    if isinstance(value, Mapping):
        return join(b"m", sorted([encode(k, depth) + encode(v, depth) for k, v in value.items()]))
    if isinstance(value, AbstractSet):
        return join(b"S", sorted([encode(item, depth) for item in value]))
    if is_dataclass(value) and not isinstance(value, type):
        parts = [text(f.name) + encode(getattr(value, f.name), depth) for f in fields(value) if f.compare]
        return b"o" + _class(value) + join(b"l", parts)
    kind = type(value)
    raise UnfitError(f"{kind.__module__}.{kind.__qualname__} has no form that is equal in every process")
