"""The error tree: one root, text-only arguments, and errors that survive a result backend."""

from __future__ import annotations

import copy
import inspect
import json
import math
import pickle

import pytest
from celery import Celery
from celery.backends.base import DisabledBackend

from singleflight import errors
from singleflight.errors import ConfigurationError, Conflict, SingleflightError, StoreUnavailable
from singleflight.lease import Busy, Holder, Reason

TREE = [error for _, error in inspect.getmembers(errors, inspect.isclass) if issubclass(error, Exception)]


@pytest.mark.parametrize("error", TREE)
def test_every_error_has_the_one_root(error: type[Exception]) -> None:
    """A caller can catch all of ours, and nothing else, by one name."""
    assert issubclass(error, SingleflightError)
    assert len(TREE) == 7


@pytest.mark.parametrize("error", TREE)
def test_every_error_survives_pickling_and_being_rebuilt_from_its_arguments(error: type[Exception]) -> None:
    """Result backends do the one or the other; what comes out says the same."""
    raised = error("nightly: run r1 no longer holds k")

    assert pickle.loads(pickle.dumps(raised)).args == raised.args
    assert type(raised)(*raised.args).args == raised.args
    assert all(isinstance(argument, str) for argument in raised.args)


BUSY = Busy(
    Reason.RUNNING, "run-1", 12.5, Holder("shop.night", "wörker-1", 7), 1_800_000_000.25, waiting="run-2"
)


@pytest.mark.parametrize("busy", [BUSY, Busy(Reason.QUEUED, "run-1", math.inf), Busy(Reason.FINISHED, "", 0)])
def test_a_conflict_tells_who_is_in_the_way_wherever_it_travels(busy: Busy) -> None:
    """Pickled, rebuilt from its arguments or from their JSON: the text and `busy` are the same."""
    raised = Conflict(f"night: {busy}", busy)
    backend = DisabledBackend(app=Celery("errors", set_as_current=False))
    stored = json.loads(json.dumps(backend.prepare_exception(raised, "json")))
    travelled = [
        pickle.loads(pickle.dumps(raised)),
        copy.deepcopy(raised),
        Conflict(*raised.args),
        backend.exception_to_python(stored),
    ]

    assert [error.busy for error in travelled] == [busy] * 4
    assert [str(error) for error in travelled] == [f"night: {busy}"] * 4
    assert repr(raised) == f"Conflict({str(raised)!r})", "monitors show the sentence, and not what travels"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "7", '{"reason":"odd"}', BUSY.encode()[:-9], "[" * 9999]
)
def test_a_conflict_with_foreign_arguments_knows_of_nobody(text: str) -> None:
    """What stands in a result backend may come from anyone."""
    assert Conflict("night is taken", text).busy is None


def test_a_wrong_value_is_also_a_value_error() -> None:
    """Callers who know nothing of us still catch it."""
    assert issubclass(ConfigurationError, ValueError)


def test_an_outage_is_no_configuration_error() -> None:
    """The one passes, the other does not: no policy may take them for each other."""
    assert not issubclass(StoreUnavailable, ConfigurationError)
    assert not issubclass(ConfigurationError, StoreUnavailable)


@pytest.mark.parametrize("error", TREE)
def test_every_error_says_when_it_is_raised(error: type[Exception]) -> None:
    """Its documentation begins with the occasion."""
    assert (error.__doc__ or "").startswith(("Raised when", "Root of", "Stored as"))
