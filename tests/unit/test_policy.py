"""Options: what may be written, what it comes to, and what is refused with which words."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import pickle
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from fractions import Fraction
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singleflight.errors import ConfigurationError
from singleflight.options import LONGEST, AtMostOne, OnConflict, OnLost, OnStoreError
from singleflight.policy import BUILT_IN, EFFECTS, REFUSED, UNSET, Policy, Singleton, resolve

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no counterexample."""

DURATIONS = ["window", "ttl", "give_up_after", "max_hold", "queue_ttl"]
CHOICES = {
    "on_conflict": OnConflict,
    "at_most_one": AtMostOne,
    "on_store_error": OnStoreError,
    "on_lost": OnLost,
}


# --- one option at a time -----------------------------------------------------------------------------


def test_every_option_starts_unset() -> None:
    """Nothing that nobody wrote can win over another layer."""
    assert {getattr(Singleton(), option.name) for option in fields(Singleton)} == {UNSET}


@pytest.mark.parametrize("option", DURATIONS)
@pytest.mark.parametrize(
    ("written", "seconds"),
    [(5, 5.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (0.001, 0.001), (LONGEST, LONGEST)],
)
def test_a_duration_is_seconds_or_a_timedelta(option: str, written: object, seconds: float) -> None:
    """All spellings of a duration become float seconds, milliseconds kept."""
    kept = getattr(Singleton(**{option: written}), option)

    assert kept == seconds
    assert type(kept) is float


@pytest.mark.parametrize("option", DURATIONS)
@pytest.mark.parametrize(
    "value",
    [
        "30",
        "",
        b"30",
        True,
        False,
        math.nan,
        math.inf,
        -math.inf,
        -1,
        timedelta(seconds=-1),
        0.0004,
        LONGEST * 2,
        10**400,
        timedelta.max,
        Fraction(1),
        [30],
        UNSET.__class__,
    ],
    ids=repr,
)
def test_an_impossible_duration_is_refused(option: str, value: Any) -> None:
    """The message names the option and says what to write."""
    with pytest.raises(ConfigurationError, match=rf"^{option}=.* (seconds|timedelta)"):
        Singleton(**{option: value})


def test_only_a_window_may_be_zero() -> None:
    """A window of 0 is none; any other duration of 0 would mean that nothing can work."""
    assert Singleton(window=0).window == 0
    for option in ("ttl", "give_up_after", "max_hold", "queue_ttl"):
        with pytest.raises(ConfigurationError, match=option):
            Singleton(**{option: timedelta(0)})  # type: ignore[arg-type]


def test_only_a_limit_may_be_none() -> None:
    """None lifts a limit that a lower layer set; a lease without ttl does not exist."""
    assert Singleton(give_up_after=None, max_hold=None).max_hold is None
    for option in ("ttl", "window", "by", "name", "on_conflict"):
        with pytest.raises(ConfigurationError, match=f"{option}=None"):
            Singleton(**{option: None})


@pytest.mark.parametrize(("option", "choices"), CHOICES.items())
def test_every_choice_is_taken_and_others_are_refused(option: str, choices: Any) -> None:
    """A wrong choice is answered with all right ones."""
    for choice in get_args(choices):
        assert getattr(Singleton(**{option: choice}), option) == choice
    for wrong in ("", "zzz", 1, None, True, ["skip"]):
        with pytest.raises(ConfigurationError, match=f"{option}=") as caught:
            Singleton(**{option: wrong})
        assert all(repr(choice) in str(caught.value) for choice in get_args(choices))


@pytest.mark.parametrize(
    ("option", "typo", "meant"),
    [
        ("on_conflict", "skipp", "skip"),
        ("on_conflict", "COALESCE", "coalesce"),
        ("at_most_one", "waiting_or_runing", "waiting_or_running"),
        ("on_store_error", "deffer", "defer"),
        ("on_lost", "warm", "warn"),
    ],
)
def test_a_misspelt_choice_gets_a_suggestion(option: str, typo: Any, meant: str) -> None:
    """Did you mean: the nearest right word."""
    with pytest.raises(ConfigurationError, match=f"{option}='{typo}'.*did you mean '{meant}'"):
        Singleton(**{option: typo})


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("a", ("a",)),
        (["b", "a"], ("a", "b")),
        (("a", "b", "a"), ("a", "b")),
        ({"a"}, ("a",)),
        ((), ()),
        ([], ()),
        ("*", "*"),
    ],
    ids=repr,
)
def test_by_is_kept_in_one_form(written: Any, kept: object) -> None:
    """Names in any spelling are a sorted tuple; an empty sequence never turns into all arguments."""
    assert Singleton(by=written).by == kept


def test_by_keeps_a_function_as_it_is() -> None:
    """A callable is called later, with the arguments."""

    def by(**arguments: object) -> object:
        return arguments

    assert Singleton(by=by).by is by


@pytest.mark.parametrize(
    "by", ["", "payload.id", "a b", ["*"], ["a", 1], ["a", ""], 3, b"a", str, True, {"a": 1}], ids=repr
)
def test_an_impossible_by_is_refused_with_what_to_write(by: Any) -> None:
    """Paths, blanks, numbers and classes are no parameter names."""
    with pytest.raises(ConfigurationError, match=r"^by=.*write by="):
        Singleton(by=by)


@pytest.mark.parametrize("name", ["", "  ", 3, b"x", True], ids=repr)
def test_an_impossible_name_is_refused(name: Any) -> None:
    """A lease is named by text that says something."""
    with pytest.raises(ConfigurationError, match="name="):
        Singleton(name=name)


def test_options_are_values() -> None:
    """They compare, copy, pickle and print as what was written, and cannot be changed."""
    options = Singleton(by=["b", "a"], ttl=timedelta(seconds=2), skip_result=None)

    assert options == Singleton(by=("a", "b"), ttl=2.0, skip_result=None)
    assert pickle.loads(pickle.dumps(options)) == copy.deepcopy(options) == options
    assert pickle.loads(pickle.dumps(Singleton())).by is UNSET
    assert repr(options) == "Singleton(by=('a', 'b'), ttl=2.0, skip_result=None)"
    assert repr(UNSET) == "UNSET"
    with pytest.raises(FrozenInstanceError):
        options.ttl = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        Singleton("a")  # type: ignore[misc]


def test_using_it_as_a_base_class_says_what_to_write() -> None:
    """A habit from celery-singleton: Celery makes a class of the task from its base."""
    with pytest.raises(ConfigurationError, match=r"^report: .*base=Singleton.*@app\.task\(singleton=True\)"):
        type("report", (Singleton,), {"name": "shop.report", "run": staticmethod(lambda: None)})


# --- singleton=... ------------------------------------------------------------------------------------


def test_the_option_takes_true_false_none_and_options() -> None:
    """What may stand after `singleton=`."""
    options = Singleton(ttl=5)

    assert Singleton.from_option(True) == Singleton()
    assert Singleton.from_option(False) is None
    assert Singleton.from_option(None) is None
    assert Singleton.from_option(options) is options


@pytest.mark.parametrize("value", [1, 0, "", "skip", {}, {"ttl": 5}, Singleton, UNSET], ids=repr)
def test_the_option_refuses_anything_else(value: object) -> None:
    """No truthy or falsy value is guessed at."""
    with pytest.raises(ConfigurationError, match=r"^singleton=.*write singleton=True"):
        Singleton.from_option(value)


# --- layers -------------------------------------------------------------------------------------------


def test_without_any_layer_the_built_in_values_hold() -> None:
    """The table of built-in values in the documentation."""
    assert resolve() == Policy(
        by=(),
        by_given=False,
        window=0.0,
        on_conflict="skip",
        at_most_one="running",
        ttl=30.0,
        name=None,
        skip_result=UNSET,
        give_up_after=None,
        max_hold=None,
        queue_ttl=None,
        on_store_error="defer",
        on_lost="warn",
    )


VALUES: dict[str, tuple[Any, Any, Any]] = {
    "by": ("a", ("b", "c"), "*"),
    "window": (1, 2, 3),
    "on_conflict": ("defer", "join", "coalesce"),
    "ttl": (1, 2, 3),
    "give_up_after": (None, 2, 3),
    "max_hold": (41, 42, None),
    "on_store_error": ("run", "skip", "raise"),
    "on_lost": ("abort", "warn", "abort"),
}


@UNHURRIED
@given(st.dictionaries(st.sampled_from(sorted(VALUES)), st.sets(st.integers(0, 2), min_size=1)))
def test_each_option_is_decided_by_the_first_layer_that_gives_it(given_in: dict[str, set[int]]) -> None:
    """Call before task before defaults before built in, option by option."""
    if "give_up_after" in given_in:
        given_in["on_conflict"] = {0, 1, 2}
    layers = [
        Singleton(**{option: VALUES[option][depth] for option, depths in given_in.items() if depth in depths})
        for depth in range(3)
    ]
    policy = resolve(*layers)

    for option in VALUES:
        first = next((layer for layer in (*layers, BUILT_IN) if getattr(layer, option) is not UNSET), None)
        assert getattr(policy, option) == getattr(first, option)
    assert policy.by_given is ("by" in given_in)


def test_a_name_and_a_skip_result_are_kept_apart_from_nothing() -> None:
    """A skip result of None or False is a result."""
    policy = resolve(Singleton(skip_result=None), Singleton(name="nightly", skip_result=3))

    assert policy.name == "nightly"
    assert policy.skip_result is None


def test_a_name_among_the_defaults_is_refused() -> None:
    """It would make one lease of all tasks."""
    with pytest.raises(ConfigurationError, match=r"^name='x' among the defaults"):
        resolve(defaults=Singleton(name="x"))


def test_a_published_run_is_known_for_a_minute_its_ttl_or_as_long_as_was_written() -> None:
    """What a longer backlog needs is no longer bought with a dead worker that blocks as long."""
    once = Singleton(at_most_one="waiting_or_running")

    assert [resolve(Singleton(ttl=ttl), once).queue_life for ttl in (5, 600)] == [60.0, 600.0]
    assert [resolve(Singleton(queue_ttl=life), once).queue_life for life in (5, 3600)] == [5.0, 3600.0]
    assert resolve(Singleton(queue_ttl=timedelta(hours=1)), once).ttl == 30.0


def test_a_queue_that_nobody_looks_at_has_no_ttl() -> None:
    """Beside at_most_one="running" it is refused where both were chosen, and dropped if inherited."""
    with pytest.raises(
        ConfigurationError, match=r"^queue_ttl=5.0 has no meaning beside at_most_one='running'"
    ):
        resolve(task=Singleton(queue_ttl=5))

    assert resolve(defaults=Singleton(queue_ttl=5)).queue_ttl is None
    once = Singleton(at_most_one="waiting_or_running", queue_ttl=5)
    assert resolve(Singleton(at_most_one="running"), once).queue_ttl is None


# --- pairs --------------------------------------------------------------------------------------------

PAIRS = list(itertools.product(get_args(AtMostOne), get_args(OnConflict)))


def test_the_tables_cover_every_pair_once() -> None:
    """Each pair has either an effect or a reason why it is refused."""
    assert set(EFFECTS) | set(REFUSED) == set(PAIRS)
    assert not set(EFFECTS) & set(REFUSED)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_pair_is_refused_exactly_if_the_table_says_so(pair: Any) -> None:
    """The table is what is enforced, wherever the two options were given."""
    at_most_one, on_conflict = pair
    both = Singleton(at_most_one=at_most_one, on_conflict=on_conflict)
    layers: list[list[Singleton | None]] = [
        [both],
        [None, both],
        [None, None, both],
        [None, Singleton(at_most_one=at_most_one), Singleton(on_conflict=on_conflict)],
        [Singleton(on_conflict=on_conflict), Singleton(at_most_one=at_most_one)],
    ]
    for given_in in layers:
        if pair in EFFECTS:
            policy = resolve(*given_in)
            assert (policy.at_most_one, policy.on_conflict) == pair
        else:
            with pytest.raises(ConfigurationError, match=f"{on_conflict}.*{at_most_one}.*(write|use)"):
                resolve(*given_in)


def test_every_legal_pair_says_who_acts() -> None:
    """Only `waiting_...` acts at publish, and one run waits exactly where the table says so."""
    for (at_most_one, on_conflict), effect in EFFECTS.items():
        policy = resolve(Singleton(at_most_one=at_most_one, on_conflict=on_conflict))
        assert policy.at_publish is (effect.publish != "is sent")
        assert policy.one_waits is effect.worker.startswith("one waits")


@pytest.mark.parametrize("on_conflict", ["skip", "raise"])
def test_giving_up_needs_something_that_waits(on_conflict: Any) -> None:
    """A limit on waiting where nothing waits is a mistake where it is written."""
    for layers in (
        [None, Singleton(on_conflict=on_conflict, give_up_after=5)],
        [Singleton(give_up_after=5), Singleton(on_conflict=on_conflict)],
        [None, Singleton(give_up_after=5), Singleton(on_conflict=on_conflict)],
        [None, None, Singleton(give_up_after=5, on_conflict=on_conflict)],
    ):
        with pytest.raises(ConfigurationError, match=rf"^give_up_after=5.0 .*on_conflict='{on_conflict}'"):
            resolve(*layers)


def test_giving_up_is_refused_beside_the_built_in_skip_unless_it_is_a_default() -> None:
    """Defaults speak to the tasks that wait; a task speaks of itself."""
    with pytest.raises(ConfigurationError, match="give_up_after"):
        resolve(task=Singleton(give_up_after=5))

    assert resolve(defaults=Singleton(give_up_after=5)).give_up_after is None
    assert resolve(None, Singleton(on_conflict="defer"), Singleton(give_up_after=5)).give_up_after == 5


def test_an_inherited_option_gives_way_to_a_more_specific_choice() -> None:
    """A call or task that chooses another conflict need not take back what belonged to the old one."""
    waits = Singleton(on_conflict="defer", give_up_after=5, skip_result=0)

    assert resolve(Singleton(on_conflict="skip"), waits).give_up_after is None
    assert resolve(Singleton(on_conflict="skip"), waits).skip_result == 0
    assert resolve(Singleton(on_conflict="raise"), waits).skip_result is UNSET
    assert resolve(None, Singleton(on_conflict="raise"), waits).give_up_after is None

    two = Singleton(at_most_one="waiting_and_running", give_up_after=5)

    assert resolve(Singleton(at_most_one="running"), two).give_up_after is None


def test_the_one_that_waits_may_give_up() -> None:
    """With one waiting and one running, something waits even if further ones are skipped."""
    policy = resolve(task=Singleton(at_most_one="waiting_and_running", give_up_after=5))

    assert policy.give_up_after == 5


def test_a_skip_result_beside_raise_is_refused() -> None:
    """What is raised is not skipped."""
    with pytest.raises(ConfigurationError, match=r"^skip_result=0 .*on_conflict='raise'"):
        resolve(task=Singleton(on_conflict="raise", skip_result=0))


def test_a_lease_cannot_be_held_shorter_than_its_ttl() -> None:
    """An unrenewed lease still lives for ttl, so a shorter max_hold would promise what is not done."""
    with pytest.raises(ConfigurationError, match=r"^max_hold=10.0 is shorter than ttl=30"):
        resolve(task=Singleton(max_hold=10))
    with pytest.raises(ConfigurationError, match="max_hold"):
        resolve(Singleton(ttl=60), Singleton(max_hold=50))

    assert resolve(task=Singleton(max_hold=10, ttl=10)).max_hold == 10


# --- header -------------------------------------------------------------------------------------------


OPTIONS = st.builds(
    lambda **options: Singleton(**{name: value for name, value in options.items() if value is not UNSET}),
    by=st.just(UNSET) | st.sampled_from(["a", ("a", "b"), (), "*"]),
    window=st.just(UNSET) | st.floats(1, 100),
    on_conflict=st.just(UNSET) | st.sampled_from(get_args(OnConflict)),
    ttl=st.just(UNSET) | st.timedeltas(timedelta(seconds=1), timedelta(days=1)),
    skip_result=st.just(UNSET)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists),
    max_hold=st.just(UNSET) | st.none() | st.integers(1, 100),
)


@UNHURRIED
@given(OPTIONS)
def test_options_come_out_of_a_json_header_as_they_went_in(options: Singleton) -> None:
    """A call's own options travel in the message without loss."""
    assert Singleton.from_header(json.loads(json.dumps(options.to_header()))) == options


def test_a_header_holds_only_what_was_given_in_types_of_json() -> None:
    """Message headers carry no tuples and no timedeltas, and nothing that nobody wrote."""
    header = Singleton(by="a", ttl=timedelta(seconds=2), max_hold=None).to_header()

    assert header == {"by": ["a"], "ttl": 2.0, "max_hold": None}


def test_a_skip_result_too_deep_for_json_cannot_travel() -> None:
    """The encoder's own limit ends in a message, not in a crash."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(ConfigurationError, match="skip_result of type list"):
        Singleton(skip_result=deep).to_header()


def test_a_callable_cannot_travel() -> None:
    """The caller is told before anything is sent."""
    with pytest.raises(ConfigurationError, match=r"^by=.*cannot travel"):
        Singleton(by=lambda **_: 1).to_header()


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 2}, {1}, object(), math.nan, b"x", timedelta(1)],
    ids=lambda value: type(value).__name__,
)
def test_a_skip_result_that_json_would_change_cannot_travel(value: object) -> None:
    """A result never arrives as another one; the value is not shown."""
    with pytest.raises(ConfigurationError, match="skip_result of type"):
        Singleton(skip_result=value).to_header()


@pytest.mark.parametrize(
    "header",
    [
        None,
        True,
        "ttl",
        ["ttl"],
        {"tll": 5},
        {"ttl": "5"},
        {"ttl": None},
        {"by": {"a": 1}},
        {1: 2},
        {"on_lost": "x"},
    ],
    ids=repr,
)
def test_a_foreign_header_is_refused(header: object) -> None:
    """A header may come from anyone, so unknown options and wrong values never reach a decision."""
    with pytest.raises(ConfigurationError):
        Singleton.from_header(header)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_conflct": "skip"}, "on_conflct is no option; did you mean on_conflict"),
        ({"unique_on": "a"}, "unique_on is no option; The options are by, window"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_one(given: dict[str, Any], said: str) -> None:
    """Where it is written; what is spelt right is copied, pickled and changed as before."""
    with pytest.raises(ConfigurationError, match=said):
        Singleton(**given)
    right = Singleton(by="a", ttl=3)
    assert pickle.loads(pickle.dumps(right)) == copy.deepcopy(right) == right
    assert dataclasses.replace(right, ttl=4).ttl == 4
