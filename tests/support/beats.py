"""Real `celery beat` processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.child import Child
from tests.support.commands import APP, SCHEDULE, celery_command, import_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Beat(Child):
    """One replica of `celery beat`, with its own schedule file.

    Args:
        folder: where its log and schedule file go.
        env: the app's environment (broker, body log).
        name: tells replicas apart.
        schedule: entry name -> Celery's entry, for example `{"task": "body", "schedule": 1.0}`.
        scheduler: as given to `celery beat --scheduler`; Celery's own if empty.
        args: further arguments.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        *,
        name: str = "beat1",
        schedule: Mapping[str, Mapping[str, object]],
        scheduler: str = "",
        app: str = APP,
        args: Sequence[str] = (),
    ) -> None:
        # An empty pid file name means none, so that replicas share a folder.
        options = ["-l", "DEBUG", "--pidfile=", "-s", folder / f"{name}.schedule"]
        options += ["--scheduler", scheduler] if scheduler else []
        super().__init__(
            [*celery_command(app), "beat", *options, *args],
            log=folder / f"{name}.log",
            ready="beat: Starting...",
            env={**import_path(folder), **env, SCHEDULE: json.dumps(schedule)},
        )
