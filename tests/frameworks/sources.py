"""Bring a framework's released sources and make an environment for their tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.frameworks.suites import EXTRAS, TOOLS

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".venv" / "suites"
"""Sources, environments and results; git does not see them."""
OURS = Path(__file__).parent / "dramatiq_tests"
LACKING = {"package.py": "__init__.py", "common.py": "common.py", "fixtures.py": "conftest.py"}
"""What Dramatiq's sources as released lack beside their tests, and where our own takes its place."""


@dataclass(frozen=True)
class Release:
    """One released version of a framework, unpacked, with its environment."""

    framework: str
    version: str

    @property
    def folder(self) -> Path:
        """Where all of it lies."""
        return KEPT / f"{self.framework}-{self.version}"

    @property
    def sources(self) -> Path:
        """The unpacked sources; the tests run in this folder."""
        return self.folder / "sources"

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self.folder / "environment" / "bin" / "python"


def bring(requirement: str) -> Release:
    """Return a release that is ready to be tested.

    Args:
        requirement: as for pip, such as ``celery`` or ``dramatiq==1.17.*``; the newest that fits is taken.
    """
    framework = requirement.split("=", maxsplit=1)[0]
    # Only the framework itself as sources: what builds its metadata may come built.
    options = ["--no-deps", "--no-binary", framework, "--quiet"]
    with tempfile.TemporaryDirectory(prefix="singleflight-suites-") as folder:
        _run(sys.executable, "-m", "pip", "download", *options, "--dest", folder, requirement)
        (archive,) = Path(folder).glob("*.tar.gz")
        release = Release(framework, archive.name.removesuffix(".tar.gz").rsplit("-", 1)[1])
        if not release.sources.exists():
            _unpack(archive, release)
    if framework == "dramatiq":
        for ours, name in LACKING.items():
            shutil.copyfile(OURS / ours, release.sources / "tests" / name)
    _install(release)
    return release


def _unpack(archive: Path, release: Release) -> None:
    release.folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        packed.extractall(release.folder, filter="data")
    (release.folder / f"{release.framework}-{release.version}").rename(release.sources)


def _install(release: Release) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not release.python.exists():
        _run(uv, "venv", "--quiet", "--python", sys.executable, release.folder / "environment")
    framework = f"{release.framework}[{','.join(EXTRAS[release.framework].split())}]=={release.version}"
    # Not editable: what is edited during the run must not change it.
    ours = [
        "--reinstall-package",
        "singleflight-tasks",
        f"singleflight-tasks[{release.framework},cli] @ {ROOT.as_uri()}",
    ]
    wanted = [framework, *TOOLS[release.framework].split(), *ours]
    _run(uv, "pip", "install", "--quiet", "--python", release.python, *wanted)


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout
