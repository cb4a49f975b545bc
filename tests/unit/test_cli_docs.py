"""The command line's page and dashboard speak of what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import UUID

import pytest

from singleflight import Kind, Outcome
from singleflight.api import PREFIX
from singleflight.cli.exits import Exit
from singleflight.cli.group import group
from singleflight.cli.operators import actions as operate
from singleflight.cli.operators.access import Access
from singleflight.cli.run.command import run
from singleflight.keys import lease_key
from singleflight.lease import Busy, Granted, Holder
from singleflight.metrics import HELP
from singleflight.stores.base import Claim, Release
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text("utf-8")


def test_the_page_names_every_command_option_and_exit_code() -> None:
    """What can be typed is documented, and so is what comes back."""
    options = [
        name for option in run.params for name in option.opts + option.secondary_opts if name[0] == "-"
    ]

    assert [
        name for name in group.commands if f"`{name}" not in PAGE and f"singleflight {name}" not in PAGE
    ] == []
    assert [name for name in options if f"`{name}" not in PAGE] == []
    assert [code for code in Exit if str(int(code)) not in PAGE] == []
    assert [name for name in HELP if f"`{name}" not in PAGE] == []
    assert [kind for kind in Kind if f"`{kind}`" not in PAGE] == []


@pytest.fixture
def access() -> Access:
    """The store of the page's examples."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    holder = Holder("reports.nightly", "worker-1", 26383).encode()
    nightly, imports = lease_key(PREFIX, "reports.nightly"), lease_key(PREFIX, "imports")
    runs = iter(str(UUID(int=number)) for number in range(100))

    def claim(key: str, **more: int) -> Granted | Busy:
        return store.claim(Claim(key, run := next(runs), 0, run, ttl_ms=30_000, holder=holder, **more))

    def end(key: str, **more: int) -> None:
        claim(key, **more)
        look = store.peek(key)
        assert look is not None
        run = look.record.run_id
        store.release(Release(key, run, 0, run, Outcome.FINISHED))

    for key in (nightly, *(lease_key(PREFIX, f"free-{number}") for number in range(5))):
        end(key)
    clock.advance(600)
    claim(nightly, window_ms=90_000)
    clock.advance(2)
    claim(nightly)
    claim(nightly, wait_ms=60_000)
    clock.advance(2)
    end(imports, window_ms=3_600_000)
    clock.advance(1)
    return Access(store, PREFIX)


@pytest.mark.parametrize("command", ["ls", "show", "evict", "watch"])
def test_the_page_shows_what_is_printed(
    access: Access, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example is what the command prints of such a store, but for numbers and names."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("USER", "ann")
    monkeypatch.delenv("SUDO_USER", raising=False)
    key = lease_key(PREFIX, "reports.nightly")
    if command == "ls":
        operate.ls(access, everything=False, as_json=False)
    elif command == "show":
        operate.show(access, key, as_json=False)
    elif command == "evict":
        operate.evict(access, key, yes=True, as_json=False)
    else:
        monkeypatch.setattr("time.sleep", _interrupt)
        operate.watch(access, every=1.0, everything=False, as_json=False)
    output, complaints = capsys.readouterr()
    (example,) = re.findall(rf"\$ singleflight {command} redis://redis/0.*\n((?:.+\n)+)```", PAGE)
    example = re.sub("Evict it.*\n", "", example)

    assert max(map(len, output.splitlines())) <= 80
    assert _shape(output + complaints) == _shape(example)


def _interrupt(_seconds: float) -> None:
    raise KeyboardInterrupt


def _shape(text: str) -> list[list[str]]:
    """Return the words of each line, with numbers, digests and run ids made equal."""
    words = r"\b[0-9a-f-]{30,}\b|\b[0-9a-f]{8}\b|\d+"
    return [re.sub(words, "#", line).split() for line in text.splitlines()]


def test_the_dashboard_asks_for_metrics_and_events_that_exist() -> None:
    """Every query names our metrics, and every event in it is one of ours."""
    from singleflight.metrics import DEFERRAL, EVENTS, HELD, HOLD

    panels = json.loads((DOCS / "grafana.json").read_text("utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    known = {f"{EVENTS}_total", f"{HOLD}_bucket", f"{DEFERRAL}_bucket", HELD}
    events = {
        event
        for query in queries
        for found in re.findall(r'event=~?"([^"]+)"', query)
        for event in found.split("|")
    }

    assert {name for query in queries for name in re.findall(r"singleflight_\w+", query)} == known
    assert events <= set(Kind)
