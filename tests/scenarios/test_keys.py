"""The troubles of key building that users of such tools reported, as far as no worker is needed."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from singleflight import ConfigurationError, Singleton
from singleflight.key_rules import KeyRule
from singleflight.keys import MAX_KEY
from singleflight.policy import resolve


def one_argument(value: object) -> None:
    """Stand for a task with one parameter."""


def declared(function: Any, singleton: Any, *, task: str = "shop.f") -> KeyRule:
    """Declare a task as an integration does: read the option, resolve it, make the rule."""
    policy = resolve(task=Singleton.from_option(singleton))
    return KeyRule(
        prefix="singleflight",
        task=task,
        signature=inspect.signature(function),
        by=policy.by,
        by_given=policy.by_given,
        name=policy.name,
    )


def test_scenario_01_positional_and_keyword_calls_are_one_key() -> None:
    """f(1, 2), f(1, b=2), f(b=2, a=1) and f(1) with the default are duplicates of each other."""

    def f(a: int, b: int = 2) -> None: ...

    rule = declared(f, Singleton(by="*"))
    keys = {
        rule.key((1, 2), {}),
        rule.key((1,), {"b": 2}),
        rule.key((), {"b": 2, "a": 1}),
        rule.key((1,), {}),
    }

    assert len(keys) == 1
    assert None not in keys


@pytest.mark.parametrize("singleton", [True, Singleton(), Singleton(by=[]), Singleton(by=())], ids=repr)
def test_scenario_03_every_spelling_of_name_only_means_name_only(singleton: Any) -> None:
    """An empty list of names never silently means all arguments."""

    def f(x: int) -> None: ...

    rule = declared(f, singleton)

    assert rule.key((0,), {}) == rule.key((1,), {}) == rule.key((), {"x": 3})


def test_scenario_03_a_misspelt_name_is_refused_at_declaration() -> None:
    """The error comes before any call, and names what would have been right."""

    def f(account_id: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'acount_id'.*account_id"):
        declared(f, Singleton(by="acount_id"))


class Size(Enum):
    """An Enum as tasks take it."""

    SMALL = 1
    LARGE = 2


def test_scenario_05_values_that_serializers_accept_have_keys() -> None:
    """UUID, datetime, date, Decimal and Enum: equal values are one key, different ones differ."""
    rule = declared(one_argument, Singleton(by="*"))
    east = timezone(timedelta(hours=3))
    values: list[tuple[object, object]] = [
        (UUID(int=1), UUID("00000000-0000-0000-0000-000000000001")),
        (UUID(int=2), UUID(int=2)),
        (datetime(2024, 5, 1, 9, tzinfo=UTC), datetime(2024, 5, 1, 12, tzinfo=east)),
        (datetime(2024, 5, 1, 9, tzinfo=east), datetime(2024, 5, 1, 6, tzinfo=UTC)),
        (date(2024, 5, 1), date(2024, 5, 1)),
        (Decimal("1.10"), Decimal("1.10")),
        (Decimal("1.11"), Decimal("1.110")),
        (Size.SMALL, Size(1)),
        (Size.LARGE, Size(2)),
    ]
    firsts = [rule.key((first,), {}) for first, _ in values]

    assert firsts == [rule.key((second,), {}) for _, second in values]
    assert len(set(firsts)) == len(values)


BOUND = """
import functools, inspect
from singleflight.key_rules import KeyRule

class Task:
    def run(self, account, reason=None): ...
    def by(self, account, **_): return account

def shard(count, account, **_): return account % count

task = Task()
for by in ("*", task.by, functools.partial(shard, 10)):
    rule = KeyRule(prefix="singleflight", task="__main__.run", signature=inspect.signature(task.run), by=by)
    print(rule.key((7,), {}))
"""


def test_scenario_07_no_key_holds_an_address_or_the_name_of_the_script() -> None:
    """Two processes agree on the keys of a bound task, whatever callable makes them."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", BOUND],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]

    assert outputs[0] == outputs[1]
    assert len(outputs[0].split()) == 3
    assert "0x" not in outputs[0].replace("{", "")
    assert "__main__" not in outputs[0]


def test_scenario_07_an_object_with_an_address_is_refused() -> None:
    """What would differ from process to process is an error that names the argument."""
    rule = declared(one_argument, Singleton(by="*"))

    with pytest.raises(ConfigurationError, match="argument 'value'"):
        rule.key((functools.partial(print, 1),), {})


def test_scenario_10_the_order_of_nested_mappings_does_not_matter_and_that_of_lists_does() -> None:
    """Both levels reversed is the same payload; a reversed list is another."""
    rule = declared(one_argument, Singleton(by="value"))

    assert rule.key(({"a": 1, "b": {"x": 1, "y": 2}},), {}) == rule.key(
        ({"b": {"y": 2, "x": 1}, "a": 1},), {}
    )
    assert rule.key(([1, 2],), {}) != rule.key(([2, 1],), {})


def test_scenario_10_a_path_is_refused_with_what_to_write_instead() -> None:
    """Paths are not supported, and a callable is offered."""
    with pytest.raises(ConfigurationError, match=r"'payload\.id'.*by=lambda"):
        Singleton(by="payload.id")


@pytest.mark.parametrize("kind", ["text", "bytes", "list"])
def test_scenario_13_long_names_and_large_arguments_have_short_keys(kind: str) -> None:
    """A name of 300 characters and 1 MB of arguments: bounded, quick, and told apart by the last byte."""
    makers: dict[str, Any] = {
        "text": lambda last: "x" * 1_000_000 + last,
        "bytes": lambda last: b"x" * 1_000_000 + last.encode(),
        "list": lambda last: ["x" * 10] * 100_000 + [last],
    }
    rule = declared(one_argument, Singleton(by="*"), task="n" * 300)
    one, other = makers[kind]("a"), makers[kind]("b")
    started = time.process_time()
    keys = [rule.key((one,), {}), rule.key((other,), {})]
    took = time.process_time() - started

    assert keys[0] != keys[1]
    assert all(key is not None and len(key) <= MAX_KEY for key in keys)
    # Milliseconds on an idle machine; the bound only catches work that grows faster than the argument.
    assert took < 5


def test_scenario_16_any_text_and_bytes_have_stable_keys() -> None:
    """Accents, other scripts, emoji, raw bytes and a lone surrogate work, each with its own key."""
    rule = declared(one_argument, Singleton(by="*"))
    values = ["heé中", "🙂", b"\xff\x00", "\ud83d", "\ud83d\ude42"]
    keys = [rule.key((value,), {}) for value in values]

    assert keys == [rule.key((value,), {}) for value in values]
    assert len(set(keys)) == len(values)
    assert all(key is not None and key.isascii() for key in keys)


def test_scenario_16_a_task_name_of_any_text_has_a_key_that_can_be_stored() -> None:
    """Even a name that cannot be written as UTF-8 gives a key that can."""
    for name in ("tâche", "任务", "bad\ud83d"):
        key = declared(lambda: None, Singleton(by=()), task=name).key((), {})

        assert key is not None
        assert key.encode()


def test_scenario_17_a_task_of_a_script_warns_unless_it_has_a_name() -> None:
    """Under __main__ the script and the worker would have two keys; an explicit name gives one."""

    def f() -> None: ...

    script, worker = declared(f, True, task="__main__.f"), declared(f, True, task="app.f")
    named = [declared(f, Singleton(name="f"), task=task) for task in ("__main__.f", "app.f")]

    assert any("__main__" in text and "explicit name" in text for text in script.warnings())
    assert worker.warnings() == []
    assert named[0].key((), {}) == named[1].key((), {}) is not None
    assert named[0].warnings() == []
