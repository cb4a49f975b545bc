"""The command line's page and dashboard speak of what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from singleflight import Kind
from singleflight.cli.exits import Exit
from singleflight.cli.group import group
from singleflight.cli.run import run

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_names_every_command_option_and_exit_code() -> None:
    """What can be typed is documented, and so is what comes back."""
    page = (DOCS / "cli.md").read_text("utf-8")
    options = [
        name for option in run.params for name in option.opts + option.secondary_opts if name[0] == "-"
    ]

    assert [
        name for name in group.commands if f"`{name}" not in page and f"singleflight {name}" not in page
    ] == []
    assert [name for name in options if f"`{name}" not in page] == []
    assert [code for code in Exit if str(int(code)) not in page] == []
    assert [kind for kind in Kind if f"`{kind}`" not in page] == []


def test_the_dashboard_asks_for_metrics_and_events_that_exist() -> None:
    """Every query names our metrics, and every event in it is one of ours."""
    from singleflight.metrics import DEFERRAL, EVENTS, HOLD

    panels = json.loads((DOCS / "grafana.json").read_text("utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    known = {f"{EVENTS}_total", f"{HOLD}_bucket", f"{DEFERRAL}_bucket"}
    events = {
        event
        for query in queries
        for found in re.findall(r'event=~?"([^"]+)"', query)
        for event in found.split("|")
    }

    assert {name for query in queries for name in re.findall(r"singleflight_\w+", query)} == known
    assert events <= set(Kind)
