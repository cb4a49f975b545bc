"""What users get from the wheel: complete, light, and importable without any driver."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DRIVERS = ("redis", "celery", "kombu", "dramatiq", "sqlalchemy", "boto3", "click", "rich")
IMPORT_BUDGET_MS = 50
USUAL_MS = 21
"""What Python's own `dataclasses` and `logging` take where the budget was set."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel under test: tox's, or one built now."""
    if "TOX_PACKAGE" in os.environ:
        return Path(os.environ["TOX_PACKAGE"])
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an empty environment that has the bare wheel and no index to get more from."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip("--python", str(python), "install", "--no-index", str(wheel))
    return python


def pip(*arguments: str) -> None:
    """Run pip, showing what it said if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "-q", *arguments], capture_output=True, text=True, cwd=Path(sys.prefix)
    )
    assert done.returncode == 0, done.stderr


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with nothing of this environment on its path."""
    done = subprocess.run([python, "-I", *arguments], capture_output=True, text=True, cwd=python.parent)
    assert done.returncode == 0, done.stderr
    return done


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """Each file of the source folder, Lua scripts and the typing marker included, is in the wheel."""
    source = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "singleflight").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("singleflight/")}

    assert packed == source
    assert "singleflight/py.typed" in packed
    assert any(name.endswith(".lua") for name in packed)


@pytest.mark.skipif(
    "TOX_PACKAGE" not in os.environ, reason="an editable install is the source; type: ./dev test"
)
def test_the_tests_run_against_the_installed_wheel() -> None:
    """No test can pass because of a file that stands in the source folder only."""
    package = importlib.import_module("singleflight")

    assert package.__file__ is not None
    assert not Path(package.__file__).is_relative_to(ROOT / "singleflight")


def test_the_bare_wheel_brings_no_other_package(bare_python: Path) -> None:
    """Installing without extras installs one distribution."""
    listed = run(
        bare_python, "-c", "from importlib.metadata import distributions as d; print(*(x.name for x in d()))"
    )

    assert listed.stdout.split() == ["singleflight-tasks"]


def test_importing_singleflight_loads_no_driver(bare_python: Path) -> None:
    """`import singleflight` needs no driver, and loads nothing but itself and Python's own."""
    code = "import sys, singleflight; print(*{name.partition('.')[0] for name in sys.modules})"
    bare = set(run(bare_python, "-c", code).stdout.split())
    full = set(run(Path(sys.executable), "-c", code).stdout.split())

    assert "singleflight" in bare
    assert not bare - sys.stdlib_module_names - {"singleflight", "__main__"}
    assert not full & set(DRIVERS)


def test_importing_singleflight_is_fast(bare_python: Path) -> None:
    """`import singleflight` takes less than 50 ms of processor time, Python's own modules included.

    The best of some tries counts. A machine that is slow with Python's own modules has more time.
    """
    usual = min(cpu_ms(bare_python, "import dataclasses, logging") for _ in range(5))
    budget = IMPORT_BUDGET_MS * max(1.0, usual / USUAL_MS)
    tries = []
    while len(tries) < 20 and min(tries, default=budget) >= budget:
        tries.append(cpu_ms(bare_python, "import singleflight"))

    assert min(tries) < budget, (usual, tries)


def cpu_ms(python: Path, statement: str) -> float:
    """Return the milliseconds of processor time that a new interpreter spends on a statement."""
    code = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
    return float(run(python, "-c", code).stdout) * 1000


def test_importing_singleflight_loads_nothing_heavy(bare_python: Path) -> None:
    """Of Python's own modules, none that costs more than all of ours is loaded before it is needed."""
    loaded = run(bare_python, "-c", "import sys, singleflight; print(*sys.modules)").stdout.split()

    assert not set(loaded) & {"asyncio", "email", "importlib.metadata", "sqlite3", "ssl", "urllib.request"}


def test_every_entry_point_can_be_loaded() -> None:
    """The command, the stores and the beat scheduler that the metadata names exist."""
    for entry in distribution("singleflight-tasks").entry_points:
        assert callable(entry.load()), entry


def test_what_the_package_promises_is_there_and_documented() -> None:
    """Every name in `__all__` exists, no public name is missing from it, and each is documented."""
    package = importlib.import_module("singleflight")
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }

    assert set(package.__all__) == public - {"TYPE_CHECKING"} | {"Event", "Kind"}
    for name in package.__all__:
        assert inspect.getdoc(getattr(package, name)), name
