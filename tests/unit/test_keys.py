"""Keys: what is one key, what is another, and what is refused."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import subprocess
import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singleflight.canonical import MAX_DEPTH
from singleflight.errors import ConfigurationError
from singleflight.events import short_key
from singleflight.key_rules import KeyRule
from singleflight.keys import MAX_KEY, MAX_PREFIX, lease_key

if TYPE_CHECKING:
    from collections.abc import Callable


UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no counterexample."""


def rule_of(function: Callable[..., object], **options: Any) -> KeyRule:
    """Make the rule of a function, as an integration does when a task is declared."""
    settings = {"prefix": "singleflight", "task": "shop.task", "by": "*"} | options
    return KeyRule(signature=inspect.signature(function), **settings)


def one_argument(value: object) -> None:
    """Stand for a task with one parameter."""


def no_argument() -> None:
    """Stand for a task without parameters."""


def optional_arguments(value: int = 1, *args: object, **kwargs: object) -> None:
    """Stand for a task that can be called without arguments."""


def key_of(value: object) -> str:
    """Return the key of a call with this one argument."""
    key = rule_of(one_argument).key((value,), {})
    assert key is not None
    return key


# --- a second, independent statement of which values are the same ------------------------------------

NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall-clock times are what is tested


def meaning(value: object) -> object:  # noqa: PLR0911 - one rule for each kind, as documented
    """Return a hashable stand-in: two values must share a key exactly if their meanings are equal."""
    if isinstance(value, bool) or value is None:
        return ("itself", str(value))
    if isinstance(value, int | float | Decimal):
        kind = "decimal" if isinstance(value, Decimal) else "number"
        if value.is_nan() if isinstance(value, Decimal) else math.isnan(value):
            return (kind, "nan")
        return (kind, str(float(value))) if math.isinf(value) else (kind, Fraction(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return ("bytes", bytes(value))
    if isinstance(value, datetime):
        instant = value.utcoffset() is not None
        return ("instant", value.astimezone(UTC)) if instant else ("wall clock", value - NAIVE_EPOCH)
    if isinstance(value, list | tuple):
        return ("sequence", tuple(map(meaning, value)))
    if isinstance(value, dict):
        pairs = Counter((meaning(key), meaning(item)) for key, item in value.items())
        return ("mapping", frozenset(pairs.items()))
    if isinstance(value, set | frozenset):
        return ("set", frozenset(Counter(map(meaning, value)).items()))
    return (type(value).__name__, str(value))


TRICKY = st.text(alphabet=":;,{}[]()\"'\\ \n\0silmnTFfdbS0123-", max_size=6)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e300]),
    st.decimals(),
    st.sampled_from(
        [Decimal("1.10"), Decimal("1.1"), Decimal(1), Decimal("0E+3"), Decimal("-0"), Decimal("1E+2")]
    ),
    st.text(max_size=5),
    st.text(alphabet=st.characters(categories=["Cs", "L"]), max_size=3),
    TRICKY,
    st.binary(max_size=5),
    st.binary(max_size=5).map(bytearray),
    st.uuids(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1)),  # noqa: DTZ001 - naive on purpose
    st.datetimes(
        min_value=datetime(1900, 1, 1),  # noqa: DTZ001 - Hypothesis adds the zone
        max_value=datetime(2100, 1, 1),  # noqa: DTZ001 - Hypothesis adds the zone
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))]),
    ),
)
HASHABLE = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=2), TRICKY, st.floats())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.frozensets(HASHABLE, max_size=3),
    ),
    max_leaves=8,
)
SMALL = st.recursive(
    st.sampled_from(
        [None, True, False, 0, 1, 1.0, -0.0, math.nan, "", "1", "n", b"1", Decimal(1), Decimal("1.0")]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from([None, 0, 1.0, "", "1"]), inner, max_size=2),
        st.frozensets(st.sampled_from([None, 0, 1.0, "", "1"]), max_size=2),
    ),
    max_leaves=4,
)


def rewritten(value: object) -> object:  # noqa: PLR0911 - one rule for each kind
    """Return the same value in other clothes: another order, another class, another number type."""
    if isinstance(value, dict):
        return OrderedDict((rewritten(key), rewritten(item)) for key, item in reversed(value.items()))
    if isinstance(value, frozenset):
        return set(value)
    if isinstance(value, list):
        return tuple(map(rewritten, value))
    if isinstance(value, tuple):
        return list(map(rewritten, value))
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if isinstance(value, bytes):
        return memoryview(value)
    return value


# --- properties ---------------------------------------------------------------------------------------


@UNHURRIED
@given(VALUES, VALUES)
def test_two_values_share_a_key_exactly_if_they_mean_the_same(one: object, other: object) -> None:
    """Neither distinct work is merged nor equal work kept apart, over all kinds of values."""
    same = meaning(one) == meaning(other)

    assert (key_of(one) == key_of(other)) is same


@UNHURRIED
@given(SMALL, SMALL)
def test_look_alikes_share_a_key_exactly_if_they_mean_the_same(one: object, other: object) -> None:
    """The same from a handful of values that resemble each other, so that near misses are met often."""
    same = meaning(one) == meaning(other)

    assert (key_of(one) == key_of(other)) is same


@UNHURRIED
@given(VALUES)
def test_order_and_class_of_containers_do_not_matter(value: object) -> None:
    """Mappings and sets in any order, lists as tuples and whole floats as ints are the same work."""
    assert key_of(value) == key_of(rewritten(value))


@UNHURRIED
@given(st.lists(TRICKY, max_size=4), st.lists(TRICKY, max_size=4))
def test_text_cannot_imitate_the_borders_between_values(one: list[str], other: list[str]) -> None:
    """Texts full of tags, digits and delimiters stay what they are, in lists, mappings and sets."""
    assert (key_of(one) == key_of(other)) is (one == other)
    assert (key_of(set(one)) == key_of(set(other))) is (set(one) == set(other))
    pairs, others = dict(enumerate(one)), dict(enumerate(other))
    assert (key_of(pairs) == key_of(others)) is (pairs == others)


@UNHURRIED
@given(TRICKY.filter(str.strip), TRICKY.filter(str.strip), TRICKY, TRICKY)
def test_name_and_argument_cannot_be_shifted_into_each_other(a: str, b: str, x: str, y: str) -> None:
    """Two calls share a key only if both the name and the argument are equal."""
    first = rule_of(one_argument, task=a).key((x,), {})
    second = rule_of(one_argument, task=b).key((y,), {})

    assert (first == second) is ((a, x) == (b, y))


@UNHURRIED
@given(
    st.text(alphabet=st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=MAX_PREFIX),
    st.text(min_size=1, max_size=400).filter(str.strip),
    VALUES,
)
def test_every_key_is_short_printable_and_ends_in_a_hash_tag(prefix: str, name: str, value: object) -> None:
    """Whatever the name and the arguments, every store can keep the key and a cluster can place it."""
    key = rule_of(one_argument, prefix=prefix, task=name).key((value,), {})

    assert key is not None
    assert key.startswith(f"{prefix}:")
    assert len(key) <= MAX_KEY
    assert key.isprintable()
    assert "__main__" not in key.removeprefix(prefix)
    readable, tag = key.removeprefix(f"{prefix}:").split(":")
    assert not set(readable) & set("{} ")
    assert tag[0] == "{" and tag[-1] == "}"  # noqa: PT018 - one shape
    assert len(bytes.fromhex(tag[1:-1])) == 16


@UNHURRIED
@given(
    st.lists(st.integers(-2, 2), max_size=5), st.dictionaries(st.sampled_from("abcde"), st.integers(-2, 2))
)
def test_a_call_has_a_key_exactly_if_python_would_make_it(args: list[int], kwargs: dict[str, int]) -> None:
    """Arguments that do not bind give None, so that the call itself raises its TypeError."""

    def task(a: int, b: int = 2, /, *, c: int = 3) -> None: ...

    try:
        task(*args, **kwargs)
    except TypeError:
        binds = False
    else:
        binds = True

    assert (rule_of(task).key(args, kwargs) is not None) is binds


# --- which arguments count ----------------------------------------------------------------------------


def order(account: int, item: str = "book", *rest: int, note: str = "", **extra: object) -> None:
    """Stand for a task with every kind of parameter."""


@pytest.mark.parametrize("by", ["*", ("account",), ("account", "item"), lambda account, **_: account])
def test_every_spelling_of_a_call_is_one_key(by: Any) -> None:
    """Positional, by keyword and with defaults left out is the same call."""
    rule = rule_of(order, by=by)
    spellings = {
        rule.key((7,), {}),
        rule.key((), {"account": 7}),
        rule.key((7, "book"), {"note": ""}),
        rule.key((), {"item": "book", "account": 7}),
    }

    assert len(spellings) == 1
    assert rule.key((8,), {}) not in spellings


def test_only_the_chosen_arguments_count() -> None:
    """What `by` does not name makes no difference, what it names does."""
    rule = rule_of(order, by=("account", "note"))

    assert rule.key((1, "pen", 5), {"x": 1}) == rule.key((1, "cup"), {})
    assert rule.key((1,), {"note": "a"}) != rule.key((1,), {"note": "b"})


def test_all_arguments_count_with_a_star() -> None:
    """Extra positional and keyword arguments belong to the key, and never stand in for one another."""
    rule = rule_of(order)
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = [
        ((1,), {}),
        ((1, "pen"), {}),
        ((1, "book", 1), {}),
        ((1, "book", 1, 1), {}),
        ((1,), {"x": 1}),
        ((1,), {"y": 1}),
        ((1,), {"rest": (1,)}),
        ((1,), {"extra": {"x": 1}}),
    ]

    assert len({rule.key(args, kwargs) for args, kwargs in calls}) == len(calls)


def test_a_name_may_be_found_among_the_keyword_arguments() -> None:
    """A task that takes **extra, and nothing by position besides, can be keyed by one of them."""

    def task(account: int, **extra: object) -> None: ...

    rule = rule_of(task, by=("tenant",))

    assert rule.key((1,), {"tenant": "a"}) == rule.key((2,), {"tenant": "a"})
    assert len({rule.key((1,), {"tenant": tenant}) for tenant in (None, "a", "b")}) == 3


def test_a_call_that_does_not_carry_a_name_of_by_is_refused() -> None:
    """Otherwise all such calls would share one key, and all but one of them would be skipped."""

    def task(account: int, **extra: object) -> None: ...

    rule = rule_of(task, by=("account", "tenant"))

    with pytest.raises(ConfigurationError, match=r"task shop\.task.* no 'tenant'.*by=lambda") as caught:
        rule.key((4711,), {"region": "hunter2"})

    assert "hunter2" not in str(caught.value)
    assert "4711" not in str(caught.value)


def test_the_keyword_arguments_as_a_whole_can_be_named() -> None:
    """Naming the ** parameter itself means all that it collected."""
    rule = rule_of(order, by=("extra",))

    assert rule.key((1,), {"x": 1, "y": 2}) == rule.key((2,), {"y": 2, "x": 1})
    assert rule.key((1,), {"x": 1}) != rule.key((1,), {"x": 2})


def test_a_callable_gets_every_argument_by_keyword_with_defaults() -> None:
    """The function sees what the body would see, extras included."""
    seen: list[dict[str, object]] = []

    def by(**arguments: object) -> str:
        seen.append(arguments)
        return "same"

    rule_of(order, by=by).key((1,), {"x": 2})

    assert seen == [{"account": 1, "item": "book", "rest": (), "note": "", "x": 2}]


def test_a_callable_may_be_a_method_or_a_partial() -> None:
    """Neither leaves its address in the key: what it returns is all that counts."""

    class Rules:
        def account(self, account: int, **_: object) -> int:
            return account

    def shard(count: int, account: int, **_: object) -> int:
        return account % count

    by_method = [rule_of(order, by=Rules().account).key((n,), {}) for n in (1, 1, 2)]
    by_partial = [rule_of(order, by=functools.partial(shard, 10)).key((n,), {}) for n in (1, 11, 2)]

    assert by_method[0] == by_method[1] != by_method[2]
    assert by_partial == by_method


def test_a_failing_callable_is_a_configuration_error_without_the_value() -> None:
    """The message names the error's class and the task, not what was passed."""
    rule = rule_of(order, by=lambda account, **_: {}[account])

    with pytest.raises(ConfigurationError, match=r"by= of task shop\.task raised KeyError") as caught:
        rule.key(("hunter2",), {})

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("arguments", [{}, {"account": None}])
def test_a_callable_that_returns_none_is_refused_for_that_call(arguments: dict[str, object]) -> None:
    """All such calls would share one key; () or any other value says that this is meant."""

    def task(**extra: object) -> None: ...

    by_value = rule_of(task, by=lambda **given: given.get("account"))
    by_choice = rule_of(task, by=lambda **given: given.get("account") or ())

    with pytest.raises(
        ConfigurationError, match=r"by= of task shop\.task returned None.*value for every call"
    ):
        by_value.key((), arguments)
    assert by_choice.key((), arguments) == by_choice.key((), {}) != by_choice.key((), {"account": 7})
    assert by_value.key((), {"account": 7}) is not None


# --- refused when declared ----------------------------------------------------------------------------


def test_an_unknown_parameter_name_is_refused_with_the_known_ones() -> None:
    """A misspelt name is found at declaration, not at the first call."""

    def task(account_id: int, reason: str = "") -> None: ...

    with pytest.raises(ConfigurationError, match=r"'acount_id'.*shop\.task.*account_id, reason"):
        rule_of(task, by=("acount_id",))


def undecorated(function: Any) -> Any:
    """Decorate as people do who have never heard of `functools.wraps`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Run:
    """A task that is a class, with the `run` that its base had."""

    def run(self, *args: object, **kwargs: object) -> None:
        """Take whatever comes."""


def first_hidden(request: object, *args: object, **kwargs: object) -> None:
    """Stand for a wrapper that names what it needs itself."""


@pytest.mark.parametrize("function", [undecorated(order), Run().run, first_hidden])
def test_a_name_that_cannot_be_found_in_the_signature_is_refused(function: Any) -> None:
    """Given by position it would be missing from the key, so that distinct calls were duplicates."""
    with pytest.raises(ConfigurationError, match=r"by='account'.*shop\.task.*\*args.*functools\.wraps"):
        rule_of(function, by=("account",))


def test_a_signature_that_is_hidden_warns_without_by() -> None:
    """Nobody can tell whether such a task takes arguments that make its work distinct."""
    hidden = undecorated(order)

    (text,) = rule_of(hidden, by=(), by_given=False).warnings()

    assert "takes *args, **kwargs, but its key is its name only" in text
    assert (
        rule_of(hidden, by=lambda args, **kwargs: (args, kwargs)).key((1,), {}) is not None
    )  # as the text proposes
    assert rule_of(hidden, by=(), by_given=True).warnings() == []
    assert rule_of(no_argument, by=(), by_given=False).warnings() == []


@pytest.mark.parametrize(
    "by",
    [
        lambda: 1,
        lambda account: account,
        lambda account, item, rest, note: (account, item, rest, note),
        lambda other, **_: other,
        lambda account, /, **_: account,
        dict.get,
    ],
    ids=["takes nothing", "takes too few", "takes no extras", "wants another", "positional only", "builtin"],
)
def test_a_callable_that_cannot_take_the_parameters_is_refused(by: Any) -> None:
    """A `by` that would fail at every call is found at declaration."""
    with pytest.raises(ConfigurationError, match=r"cannot take the arguments of task shop\.task by keyword"):
        rule_of(order, by=by)


@pytest.mark.parametrize("prefix", ["", "a b", "a\n", "x" * (MAX_PREFIX + 1)])
def test_a_prefix_that_cannot_begin_a_key_is_refused(prefix: str) -> None:
    """A prefix is short and has no blanks, for tasks and for plain leases."""
    with pytest.raises(ConfigurationError, match="prefix="):
        lease_key(prefix, "nightly")
    with pytest.raises(ConfigurationError, match="prefix="):
        rule_of(order, prefix=prefix)


def test_a_name_that_is_no_text_is_refused() -> None:
    """A byte that is no UTF-8, as a shell may pass it, could not be kept by every store, nor shown."""
    with pytest.raises(ConfigurationError, match="no UTF-8"):
        lease_key("p", "bad\udcff")


def test_required_parameters_without_by_warn() -> None:
    """Distinct work would be skipped, so silence needs an explicit by=()."""
    unspoken = rule_of(order, by=(), by_given=False)

    assert len(unspoken.warnings()) == 1
    assert "by='account'" in unspoken.warnings()[0]
    assert rule_of(order, by=()).warnings() == []
    assert rule_of(optional_arguments, by=(), by_given=False).warnings() == []


def test_a_name_under_main_warns_unless_the_lease_has_its_own_name() -> None:
    """The name of a script's task differs from process to process."""
    script = rule_of(order, task="__main__.order")

    assert "explicit name" in script.warnings()[0]
    assert rule_of(order, task="__main__.order", name="order").warnings() == []
    assert rule_of(order, task="shop.__main__x").warnings() == []


# --- refused when called ------------------------------------------------------------------------------


class Opaque:
    """Has no canonical form."""

    def __repr__(self) -> str:
        return "hunter2"


@pytest.mark.parametrize("value", [Opaque(), [{"k": Opaque()}], {Opaque(): 1}, {1, Opaque()}], ids=type)
def test_a_value_without_canonical_form_is_refused_by_argument_and_type(value: object) -> None:
    """The message says which argument and which type, and what to do, and never shows the value."""
    with pytest.raises(ConfigurationError, match=r"'value' of task shop\.task.*Opaque.*by=lambda") as caught:
        key_of(value)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", [object(), print, Opaque, 1j, iter([]), range(3)], ids=type)
def test_objects_functions_classes_and_iterators_are_refused(value: object) -> None:
    """Nothing whose text form depends on the process can slip into a key."""
    with pytest.raises(ConfigurationError, match="no form that is equal in every process"):
        key_of(value)


def test_nesting_is_bounded_and_recursion_is_refused() -> None:
    """A structure that contains itself ends in a message, not in a crash."""
    endless: list[object] = []
    endless.append(endless)
    knot: dict[str, object] = {}
    knot["self"] = {"again": [knot]}
    deep: object = 0
    for _ in range(MAX_DEPTH):
        deep = [deep]

    assert key_of(deep)
    for value in (endless, knot, [deep]):
        with pytest.raises(ConfigurationError, match=r"'value'.*levels deep, or contains itself"):
            key_of(value)


# --- documented equalities ----------------------------------------------------------------------------


class Colour(Enum):
    """A plain Enum."""

    RED = "red"
    CRIMSON = "red"  # noqa: PIE796 - an alias is what is tested
    BLUE = object()


class Shade(StrEnum):
    """An Enum that is text."""

    RED = "red"


class Level(IntEnum):
    """An Enum that is a number."""

    LOW = 1


class Right(Flag):
    """An Enum of bits."""

    READ = 1
    WRITE = 2


@dataclass
class Point:
    """A dataclass with a field that does not count."""

    x: int
    y: int = 0
    seen: object = field(default=None, compare=False)


@dataclass(frozen=True)
class Place:
    """Another dataclass with the same fields."""

    x: int
    y: int = 0


ONE_KEY: list[list[object]] = [
    [1, 1.0],
    [0, 0.0, -0.0],
    [10**300, Decimal(10**300).__int__()],
    [math.nan, -math.nan, float("nan")],
    [Decimal("1.10"), Decimal("1.1"), Decimal("1.1000")],
    [Decimal(0), Decimal("-0.00"), Decimal("0E+5")],
    [Decimal("NaN"), Decimal("sNaN"), Decimal("-NaN")],
    [b"ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a_b_")[::2]],
    [[1, 2], (1, 2)],
    [{1, 2}, frozenset({2, 1}), {1: 0, 2: 0}.keys()],
    [{"a": 1, "b": 2}, OrderedDict(b=2, a=1), MappingProxyType({"a": 1, "b": 2})],
    [datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))],
    [Colour.RED, Colour.CRIMSON],
    [Right.READ | Right.WRITE, Right(3)],
    [Point(1, seen="a"), Point(1, 0, seen=object())],
]
APART: list[object] = [
    None,
    True,
    False,
    1,
    0,
    1.5,
    2**70,
    -(2**70),
    10**5000,
    10**5000 + 1,
    math.inf,
    -math.inf,
    math.nan,
    Decimal(1),
    Decimal("1.5"),
    Decimal("1E+99999"),
    Decimal("-1E+99999"),
    Decimal("1E-99999"),
    Decimal("Infinity"),
    Decimal("-Infinity"),
    Decimal("NaN"),
    "",
    "1",
    "None",
    "\ud83d\ude42",
    "🙂",
    "\ud83d",
    "\ud83e",
    "?",
    "\u00e9",
    "e\u0301",
    b"",
    b"1",
    [],
    [[]],
    [1, 2],
    [2, 1],
    [[1], 2],
    {},
    {"a": 1},
    {"1": 1},
    {1: 1},
    {"a": {"b": 1}},
    set(),
    {1, 2},
    frozenset({frozenset()}),
    UUID(int=1),
    str(UUID(int=1)),
    UUID(int=1).bytes,
    date(2024, 1, 1),
    datetime(2024, 1, 1),  # noqa: DTZ001 - wall-clock time
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1, microsecond=1, tzinfo=UTC),
    "2024-01-01",
    time(12),
    time(12, tzinfo=UTC),
    timedelta(0),
    timedelta(days=1),
    timedelta(microseconds=1),
    timedelta.max,
    timedelta.min,
    Colour.RED,
    Colour.BLUE,
    Enum("Colour", {"RED": "red"}, module="elsewhere", qualname="Colour")["RED"],
    Shade.RED,
    "red",
    Level.LOW,
    Right.READ,
    Right(0),
    Point(1),
    Point(1, 1),
    Place(1),
    {"x": 1, "y": 0},
]


@pytest.mark.parametrize("values", ONE_KEY, ids=lambda values: re.sub(r" at 0x\w+", "", repr(values)))
def test_values_that_are_documented_as_equal_share_a_key(values: list[object]) -> None:
    """Every equality that the module promises."""
    assert len(set(map(key_of, values))) == 1


def test_values_that_are_not_documented_as_equal_differ() -> None:
    """All pairs of a list of look-alikes have different keys."""
    assert len(set(map(key_of, APART))) == len(APART)


def test_decimals_do_not_depend_on_the_decimal_context() -> None:
    """A low precision set by other code neither merges nor splits keys."""
    values = [Decimal("1.23456"), Decimal("1.23457"), Decimal("1.234560")]
    before = list(map(key_of, values))
    with localcontext(prec=3):
        after = list(map(key_of, values))

    assert after == before
    assert before[0] == before[2] != before[1]


# --- the text of a key --------------------------------------------------------------------------------


def test_tasks_that_share_a_name_share_a_key_with_the_plain_lease() -> None:
    """`name` joins tasks, scripts and the command line in one lease."""
    first = rule_of(order, task="shop.a", name="nightly", by=()).key((1,), {})
    second = rule_of(no_argument, task="shop.b", name="nightly", by=()).key((), {})

    assert first == second == lease_key("singleflight", "nightly")
    assert first != lease_key("singleflight", "nightly2")
    assert rule_of(order, task="shop.a", name="nightly").key((1,), {}) != first


def test_what_a_callable_returns_never_meets_a_parameter() -> None:
    """A callable's value and an argument of the same name and value are different keys."""

    def task(by: int) -> None: ...

    by_callable = rule_of(task, by=lambda by: by).key((1,), {})

    assert by_callable != rule_of(task, by=("by",)).key((1,), {})


def test_long_names_are_cut_for_people_and_whole_in_the_digest() -> None:
    """Names that differ only in the part that is cut off still have their own keys."""
    names = [f"{start}{'x' * 300}" for start in "ab"]
    keys = [lease_key("singleflight", name) for name in names]

    assert keys[0].split("{")[0] == keys[1].split("{")[0]
    assert keys[0] != keys[1]


def test_a_key_shows_the_task_and_no_argument() -> None:
    """People can tell whose key it is; nobody can read a value from it."""
    key = key_of("hunter2")

    assert key.startswith("singleflight:shop.task:{")
    assert "hunter2" not in key


@pytest.mark.parametrize("prefix", ["singleflight", "shop:live:singleflight", "{shop}:singleflight"])
def test_a_short_key_is_the_name_and_eight_digits(prefix: str) -> None:
    """Logs show a key briefly, whatever prefix a broker puts before it."""
    key = lease_key(prefix, "shop: nightly {x}")
    digest = key.rpartition("{")[2]

    assert short_key(key) == f"shop__nightly__x_:{digest[:8]}"


@pytest.mark.parametrize("text", ["", "nightly", "a:b:{c}", "a:{" + "0" * 31 + "}"])
def test_a_text_that_is_no_key_stays_as_it_is_in_logs(text: str) -> None:
    """Shortening never hides what an unexpected key looks like."""
    assert short_key(text) == text


@pytest.mark.parametrize("name", ["", " "])
def test_a_lease_needs_a_name(name: str) -> None:
    """An empty name would silently be shared by everyone who forgot it."""
    with pytest.raises(ConfigurationError, match="name="):
        lease_key("singleflight", name)


PROGRAM = """
import inspect, uuid
from singleflight.key_rules import KeyRule
from singleflight.keys import lease_key

def task(names, *, options=frozenset({"x", "y", "z"}), **extra): ...

rule = KeyRule(prefix="singleflight", task="shop.task", signature=inspect.signature(task), by="*")
print(rule.key(({"one", "two", "three", b"four"},), {"b": {"p": {"q", "r"}, "s": 1}, "a": uuid.UUID(int=5)}))
print(lease_key("singleflight", "nightly"))
"""
PINNED = """\
singleflight:shop.task:{37f8caeefadd7f4c611f341e70e141c0}
singleflight:nightly:{0639513bab501da2c9e6ad61481f806f}
"""


def test_keys_do_not_depend_on_the_process() -> None:
    """Interpreters with different hash seeds, which order sets differently, agree on every key."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(printed) == 1
    # Pinned: a changed encoding would let old and new workers of a rolling deployment run side by side.
    assert printed == {PINNED}


def _with_headers(by: Any, function: Any) -> KeyRule:
    return KeyRule(prefix="p", task="shop.invoice", signature=inspect.signature(function), by=by)


def test_a_callable_that_asks_for_headers_gets_those_of_the_message() -> None:
    """Tenants may be told apart by nothing else."""
    rule = _with_headers(lambda account, headers: [account, headers.get("tenant")], lambda account: account)
    keys = [rule.key((7,), {}, {"tenant": tenant}) for tenant in ("a", "b", "a")]

    assert keys[0] == keys[2] != keys[1]
    assert rule.key((7,), {}) not in keys


def test_a_tasks_own_parameter_called_headers_stays_an_argument() -> None:
    """What a call says of it counts, and not what its message carries."""
    rule = _with_headers(lambda headers: headers["etag"], lambda headers: headers)

    assert rule.key(({"etag": "1"},), {}, {"etag": "2"}) == rule.key(({"etag": "1"},), {}, {})


def test_a_callable_that_takes_anything_is_given_no_headers() -> None:
    """They would be arguments that no call has."""
    rule = _with_headers(lambda **given: sorted(given), lambda account: account)

    assert rule.key((7,), {}, {"tenant": "a"}) == rule.key((7,), {}, {})
