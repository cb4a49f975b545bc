"""The names of all settings of an app, and what is said of one that is not among them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from singleflight.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

PREFIX = "singleflight_"
GIVEN = (
    "url",
    "prefix",
    "enabled",
    "defaults",
    "store_timeout",
    "remember",
    "listeners",
    "log_levels",
    "eager",
    "waiting",
)
"""Settings that are keywords of `install` as well (``url`` is its ``store``)."""
BEAT = ("beat_scheduler", "beat_ttl", "beat_catch_up", "beat_catch_up_window", "beat_entries")
NAMES = frozenset(PREFIX + name for name in GIVEN + BEAT)


def check_names(app: Celery) -> None:
    """Refuse settings of ours that there are not: a misspelt one would be ignored without a word.

    A setting of ours begins with ``singleflight_``, or with the app's namespace before that.

    Raises:
        ConfigurationError: naming the setting, and the one that is nearest.
    """
    before = f"{app.namespace}_".lower() if app.namespace else ""
    for key in filter(_is_text, app.conf):
        name = key.lower()
        if before and name.startswith(before + PREFIX):
            name = name.removeprefix(before)
        elif not key.startswith(PREFIX):
            continue
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0)[0]
            near = near if key == name else (before + near).upper()
            raise ConfigurationError(
                f"{key} is no setting of singleflight; did you mean {near}? "
                f"There are {', '.join(sorted(NAMES))}"
            )


def _is_text(key: object) -> bool:
    return isinstance(key, str)
