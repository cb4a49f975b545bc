"""What `import singleflight` gives, costs and leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest

import singleflight

PROBE = """
import json, sys, threading
before = set(sys.modules)
import singleflight
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({
    "foreign": sorted(loaded - set(sys.stdlib_module_names) - {"singleflight"}),
    "slow": sorted({"importlib.metadata", "asyncio", "ssl", "http", "email"} & set(sys.modules) - before),
    "threads": threading.active_count(),
    "sub": sorted(name for name in sys.modules if name.startswith("singleflight.stores.")),
}))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, object]:
    """Return what a fresh process finds after the import; without site, where packages may load things."""
    argv = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{PROBE}"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(ended.stdout))


def test_importing_touches_no_package_but_the_standard_library(imported: dict[str, object]) -> None:
    """Drivers and frameworks are loaded when they are used."""
    assert imported["foreign"] == []
    assert imported["sub"] == []


def test_importing_loads_nothing_slow(imported: dict[str, object]) -> None:
    """What takes long and is needed seldom is loaded where it is needed."""
    assert imported["slow"] == []


def test_importing_starts_no_thread(imported: dict[str, object]) -> None:
    """A process that forks afterwards finds nothing half-alive."""
    assert imported["threads"] == 1


def test_every_public_name_is_listed_and_says_what_it_is() -> None:
    """What a user can reach without an underscore is either a module or documented in the list."""
    reachable = {name for name, value in vars(singleflight).items() if not isinstance(value, ModuleType)}
    late = {"Event", "Kind"}

    assert {name for name in reachable if not name.startswith("_")} - {"TYPE_CHECKING"} | late == set(
        singleflight.__all__
    )
    assert all(getattr(singleflight, name).__doc__ for name in singleflight.__all__)


def test_the_example_of_the_design_works() -> None:
    """A lease is a value or a refusal, told apart by type."""
    first = singleflight.try_lease("memory://public", "nightly")
    second = singleflight.try_lease("memory://public", "nightly")
    assert isinstance(first, singleflight.Lease)
    assert isinstance(second, singleflight.Busy)
    assert second.holder == first.holder

    with first as held:
        held.check()

    with singleflight.lease("memory://public", "nightly") as held:
        assert singleflight.current_lease() is held
