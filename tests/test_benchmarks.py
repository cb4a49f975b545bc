"""The benchmarks run: what they measure is not judged here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(
    importlib.util.find_spec("redis_lock") is None, reason="type: pip install python-redis-lock"
)
def test_the_uncontended_benchmark_runs(tmp_path: Path) -> None:
    """It compares singleflight with bare scripts and other locks, and says so in JSON and in a picture."""
    argv = [
        sys.executable,
        "-m",
        "benchmarks",
        "uncontended",
        "--quick",
        "--json",
        "--results",
        str(tmp_path),
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    rows = {row["variant"]: row for row in report["rows"]}
    assert rows["singleflight: claim + release"]["requests"] == 2
    assert all(row["p50 us"] > 0 for row in rows.values())
    assert (tmp_path / "uncontended.svg").read_text().startswith("<svg")
