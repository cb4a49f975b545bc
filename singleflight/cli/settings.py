"""Where the store's URL comes from, if it is not on the command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from singleflight.cli.exits import Exit
from singleflight.cli.output import Failure, keep_secret

if TYPE_CHECKING:
    from pathlib import Path


def store_url(target: str, url_file: Path | None) -> str | None:
    """Return the store's URL where a target does not name it, from the file or the environment.

    Raises:
        Failure: if the file cannot be read, or the target has a URL of its own.
    """
    if url_file is None:
        url = os.environ.get("SINGLEFLIGHT_URL")
    elif "://" in target:
        raise Failure("--url-file and the URL both name a store; leave one of them out", Exit.USAGE)
    else:
        try:
            url = url_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"--url-file: {error}", Exit.USAGE) from error
    keep_secret(url or "")
    return url or None
