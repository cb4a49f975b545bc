"""The command line ``singleflight``; its parts need the extras ``cli`` and, for the demo, ``demo``."""

from __future__ import annotations

import sys
from pathlib import Path

EXTRAS = {
    "click": "cli",
    "rich": "cli",
    "celery": "demo",
    "kombu": "demo",
    "redis": "demo",
}
"""Which extra brings a package that may be missing."""


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
        if package not in EXTRAS:
            raise
        sys.exit(
            f"singleflight: {package} is not installed; "
            f'type: pip install "singleflight-tasks[{EXTRAS[package]}]"'
        )
