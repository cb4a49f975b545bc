"""The command line ``singleflight``; its parts need the extras ``cli`` and, for the demo, ``demo``."""

from __future__ import annotations

import sys

EXTRAS = {
    "click": "cli",
    "rich": "cli",
    "celery": "demo",
    "kombu": "demo",
    "redis": "demo",
}
"""Which extra brings a package that may be missing."""


def main() -> None:
    """Run the command line; a package that is not installed is one line that says what to type."""
    try:
        from singleflight.cli.group import group  # noqa: PLC0415 - what it needs may be missing

        group()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        sys.exit(
            f"singleflight: {package} is not installed; "
            f'type: pip install "singleflight-tasks[{EXTRAS[package]}]"'
        )
