"""The error tree: one root, text-only arguments, and errors that survive a result backend."""

from __future__ import annotations

import inspect
import pickle

import pytest

from singleflight import errors
from singleflight.errors import ConfigurationError, SingleflightError, StoreUnavailable

TREE = [error for _, error in inspect.getmembers(errors, inspect.isclass) if issubclass(error, Exception)]


@pytest.mark.parametrize("error", TREE)
def test_every_error_has_the_one_root(error: type[Exception]) -> None:
    """A caller can catch all of ours, and nothing else, by one name."""
    assert issubclass(error, SingleflightError)
    assert len(TREE) == 6


@pytest.mark.parametrize("error", TREE)
def test_every_error_survives_pickling_and_being_rebuilt_from_its_arguments(error: type[Exception]) -> None:
    """Result backends do the one or the other; what comes out says the same."""
    raised = error("nightly: run r1 no longer holds k")

    assert pickle.loads(pickle.dumps(raised)).args == raised.args
    assert type(raised)(*raised.args).args == raised.args
    assert all(isinstance(argument, str) for argument in raised.args)


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
