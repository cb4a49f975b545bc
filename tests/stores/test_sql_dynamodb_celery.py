"""Celery workers on a broker in Redis and leases elsewhere: duplicates never run together."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.support.rig import Rig

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "ministack"])
def test_duplicates_are_skipped_on_two_workers(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of ten messages at once on two workers, one runs at a time and the others are skipped."""
    found = request.getfixturevalue("sqlite_url" if kind == "sqlite" else kind)
    url = found if isinstance(found, str) else found.url
    key = uuid4().hex
    with Rig(tmp_path, store=url) as rig:
        rig.start(2)
        results = [rig.send("probe", key, seconds=1.0) for _ in range(10)]
        states = rig.states(results)
        runs = sorted(rig.runs(key), key=lambda run: run.started)

    assert states.count("SUCCESS") == len(runs) >= 1
    assert states.count("REVOKED") == 10 - len(runs)
    assert all(earlier.last_seen <= later.started for earlier, later in pairwise(runs))
