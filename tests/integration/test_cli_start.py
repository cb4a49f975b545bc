"""The command line before it does anything: what is missing, and its version."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("missing", "arguments", "words"),
    [
        (
            ["rich"],
            ["watch", "memory://one"],
            'rich is not installed; type: pip install "singleflight-tasks[cli]"',
        ),
        (["click"], ["--version"], 'click is not installed; type: pip install "singleflight-tasks[cli]"'),
    ],
)
def test_a_missing_package_is_one_line_that_says_what_to_type(
    missing: list[str], arguments: list[str], words: str
) -> None:
    """Without an extra, the command prints its pip line instead of a traceback."""
    hide = "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(',')))"
    start = "from singleflight.cli import main; sys.argv[0] = 'singleflight'; main()"
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}; {start}", ",".join(missing), *arguments],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_version_is_printed() -> None:
    """`singleflight --version` names program and version."""
    done = subprocess.run(
        [sys.executable, "-m", "singleflight.cli", "--version"], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.startswith("singleflight, version ")
