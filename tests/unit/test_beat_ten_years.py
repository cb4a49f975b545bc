"""Three replicas that are killed, through years of changing clocks, beside one plain beat that never is.

Some months of two zones by default; with SINGLEFLIGHT_CHAOS=1 ten years of every zone that changes its
clocks. Zones that change alike are one.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import celery
import pytest

from tests.support.beat_years import YEARS, changing_zones, differences, live

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAOS = bool(os.environ.get("SINGLEFLIGHT_CHAOS"))
ZONES = (
    [alike[0] for alike in changing_zones().values()] if CHAOS else ["Europe/Berlin", "Australia/Lord_Howe"]
)
SOME = YEARS if CHAOS else 0.3

pytestmark = [
    pytest.mark.skipif(celery.VERSION < (5, 7), reason="older Celery asks too early, and floods"),
    pytest.mark.timeout(3600 if CHAOS else 120),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # a line for every claim of ten years
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("zone", ZONES)
def test_replicas_that_are_killed_send_what_one_immortal_plain_beat_sends(zone: str) -> None:
    """Every planned time is sent once, after a kill late by the ttl; none is left out or added."""
    plain, ours = live(zone, plain=True, years=SOME), live(zone, replicas=3, years=SOME)

    assert differences(plain, ours) == []
    assert len(plain.posted) > 1000 * SOME
    assert ours.kills > 5 * SOME
