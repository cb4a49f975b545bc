"""Task name + arguments -> key; pure.

Equal arguments, by the rules of `singleflight.canonical`, give equal keys in every process, different ones
different keys (SHA-256).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from singleflight.canonical import UnfitError, encode, text
from singleflight.errors import ConfigurationError
from singleflight.keys import check_prefix, key_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from singleflight.options import By

HEADERS = "headers"
"""The parameter by which a ``by`` callable asks for the headers of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """How the calls of one task become keys; made, and checked, when the task is declared.

    Args:
        prefix: the first part of every key.
        task: the task's full name.
        signature: the task's parameters as callers see them, a bound ``self`` already dropped.
        by: () for the name only, parameter names, ``"*"``, or a callable that takes all arguments by keyword.
            One that names a parameter ``headers``, which the task does not have, gets the message's headers.
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
        check_prefix(self.prefix)
        if callable(self.by):
            self._check_callable(self.by)
        elif self.by != "*":
            self._check_names(self.by)

    def warnings(self) -> list[str]:
        """Return what looks unintended about this rule, one sentence each."""
        texts = []
        required = [
            parameter.name
            for parameter in self.signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        hidden = self._hidden
        if required and not self.by_given:
            texts.append(
                f"task {self.task} takes {', '.join(required)}, but its key is its name only: calls with "
                f"different arguments are duplicates; write by={required[0]!r} or by='*', or by=() if meant"
            )
        elif hidden and len(self.signature.parameters) == 2 and not self.by_given:  # noqa: PLR2004 - those two
            texts.append(
                f"task {self.task} takes {hidden}, but its key is its name only: calls with different "
                f"arguments are duplicates; write by='*' or by=lambda {hidden[1:]}: ..., or by=() if meant"
            )
        if self.name is None and self.task.split(".")[0] == "__main__":
            texts.append(
                f"task {self.task} is named after the script that was started: elsewhere it has another name "
                "and another key; give the task an explicit name"
            )
        return texts

    def key(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        headers: Mapping[str, object] | None = None,
    ) -> str | None:
        """Return the key of a call, or None if its arguments do not bind.

        None means: take no lease, and let the call raise its own TypeError. ``headers`` are the message's
        own, for a ``by`` that asks for them.

        Raises:
            ConfigurationError: if the call does not carry an argument that counts, if that has a type that
                has no canonical form, or if the ``by`` callable failed or returned None. The message names
                the argument and its type, never its value.
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
            parts = {"by": self._call(self.by, {**more, **own, **self._context(self.by, headers or {})})}
        elif self.by == "*":
            parts = named
        else:
            known = {**more, **named}
            parts = {name: self._carried(known, name) for name in self.by}
        encoded = [_encode_argument(self.task, name, parts[name]) for name in sorted(parts)]
        source = b"callable" if callable(self.by) else b"arguments"
        return key_text(self.prefix, self.name or self.task, [source, *encoded] if encoded else [])

    def key_of_call(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Return the key of a call, for somebody who will not make it.

        Raises:
            ConfigurationError: as `key`.
            TypeError: if the arguments do not bind, as the call itself would.
        """
        key = self.key(args, kwargs)
        if key is None:
            self.signature.bind(*args, **kwargs)
            raise TypeError(f"task {self.task} cannot be called so")
        return key

    @property
    def _extra(self) -> str | None:
        """The name of the ``**kwargs`` parameter, if there is one."""
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                return parameter.name
        return None

    @property
    def _hidden(self) -> str:
        """How the parameters read that may hide others, as in a wrapper; empty if none do."""
        names = {parameter.kind: name for name, parameter in self.signature.parameters.items()}
        args, kwargs = names.get(inspect.Parameter.VAR_POSITIONAL), self._extra
        return f"*{args}, **{kwargs}" if args and kwargs else ""

    def _carried(self, known: Mapping[str, object], name: str) -> object:
        """Return an argument that counts: calls without it must not all be one piece of work."""
        if name in known:
            return known[name]
        raise ConfigurationError(
            f"a call of task {self.task} has no {name!r}, which by={name!r} makes its key of; pass it by "
            f"keyword, give the task a parameter {name} with a default, or write "
            f"by=lambda **given: given.get({name!r}, ()) if all such calls are the same work"
        )

    def _context(self, by: Callable[..., object], headers: Mapping[str, object]) -> dict[str, object]:
        """Return what a callable is given besides the call's arguments."""
        asked = HEADERS in _cached(_parameters, by)(by) and HEADERS not in self.signature.parameters
        return {HEADERS: MappingProxyType(dict(headers))} if asked else {}

    def _call(self, by: Callable[..., object], arguments: dict[str, object]) -> object:
        try:
            value = by(**arguments)
        except Exception as exc:
            raise self._no_value(f"raised {type(exc).__name__}") from exc
        if value is None:
            # Far more often an argument that is missing than the wish that all such calls be one.
            raise self._no_value("returned None")
        return value

    def _no_value(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"by= of task {self.task} {what}; it must return a value for every call, such as () where all "
            "such calls are the same work"
        )

    def _check_names(self, by: tuple[str, ...]) -> None:
        known = self.signature.parameters
        for name in by:
            if name in known:
                continue
            if self._extra is None:
                names = ", ".join(known) or "none"
                raise ConfigurationError(
                    f"by={name!r} names no parameter of task {self.task}; its parameters are: {names}"
                )
            if hidden := self._hidden:
                raise ConfigurationError(
                    f"by={name!r} names no parameter of task {self.task}, which takes {hidden}: given by "
                    f"position it could not be found; put @functools.wraps into the decorator, name {name} "
                    f"in the signature, or write by=lambda {hidden[1:]}: ..."
                )

    def _check_callable(self, by: Callable[..., object]) -> None:
        extra = self._extra
        names = [name for name in self.signature.parameters if name != extra]
        try:
            theirs = inspect.signature(by)
            theirs.bind(**dict.fromkeys([*names, *self._context(by, {})]))
            fits = extra is None or any(p.kind is p.VAR_KEYWORD for p in theirs.parameters.values())
        except (TypeError, ValueError):
            fits = False
        if not fits:
            some = f"{names[0]}, **_: {names[0]}" if names else "**arguments: arguments['id']"
            raise ConfigurationError(
                f"by={getattr(by, '__qualname__', type(by).__name__)} cannot take the arguments of task "
                f"{self.task} by keyword ({', '.join(self.signature.parameters)}); write by=lambda {some}"
            )


def _cached(function: Any, by: object) -> Any:
    """Return a function with its cache, or without: not every callable's class has a hash."""
    return function if getattr(by, "__hash__", None) is not None else function.__wrapped__


@lru_cache(maxsize=1024)
def _parameters(by: Callable[..., object]) -> frozenset[str]:
    """Return the names of a callable's parameters."""
    try:
        return frozenset(inspect.signature(by).parameters)
    except (TypeError, ValueError):  # some that are written in C tell none
        return frozenset()


def rule_of(
    prefix: str, task: str, function: Callable[..., object], by: By, name: str | None, *, by_given: bool
) -> KeyRule:
    """Return the `KeyRule` of a task whose body is a function, the same one each time.

    Raises:
        ConfigurationError: as `KeyRule`.
    """
    rule: KeyRule = _cached(_rule_of, by)(prefix, task, function, by, name, by_given=by_given)
    return rule


@lru_cache(maxsize=1024)  # looking at the signature for each delivery would take as long as all the rest
def _rule_of(
    prefix: str, task: str, function: Callable[..., object], by: By, name: str | None, *, by_given: bool
) -> KeyRule:
    signature = inspect.signature(function)
    return KeyRule(prefix=prefix, task=task, signature=signature, by=by, by_given=by_given, name=name)


def _encode_argument(task: str, name: str, value: object) -> bytes:
    try:
        return text(name) + encode(value)
    except UnfitError as exc:
        raise ConfigurationError(
            f"argument {name!r} of task {task} cannot be part of a key: {exc}; leave it out of `by`, "
            "or let by=lambda ... return a plain value such as an id"
        ) from exc
