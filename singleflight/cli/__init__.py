"""The command line ``singleflight``; it needs the extra ``cli``."""

from __future__ import annotations

import sys
from pathlib import Path

NEEDED = ("click", "rich")
"""What the extra ``cli`` brings."""


def main() -> None:
    """Run the command line; a package that is not installed is one line that says what to type.

    Called by the name ``setlock``, the program is ``singleflight run``.
    """
    try:
        from singleflight.cli.entry_point import enter  # noqa: PLC0415 - what it needs may be missing

        # Any other name stands for singleflight too, such as __main__.py after `python -m`.
        enter("setlock" if Path(sys.argv[0]).name == "setlock" else "singleflight")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        sys.exit(f'singleflight: {package} is not installed; type: pip install "singleflight-tasks[cli]"')
