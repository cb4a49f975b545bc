"""Foreign text reaches terminals and log lines as text: no escape sequence, no second line, no markup."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from singleflight.cli.operators.actions import _table
from singleflight.cli.operators.entry import Entry
from singleflight.cli.output import Failure, spoken
from singleflight.errors import LeaseLost
from singleflight.events import Event, Kind
from singleflight.lease import Busy, Holder, Reason
from singleflight.log import logger
from singleflight.printable import printable
from singleflight.stores.base import Look, Record, Run
from singleflight.stores.view import View

FOREIGN = "\x1b[2Jgone\r\nWARNING forged\u202e\x9b[/x]"


@given(st.text() | st.binary() | st.integers())
def test_any_text_becomes_one_line_that_a_terminal_only_shows(text: object) -> None:
    """Whatever somebody has written."""
    assert printable(text).isprintable()
    assert len(printable(text, 10)) <= 10 * len("\\U00010000") + 3


def test_ordinary_text_stays_as_it_is() -> None:
    """People's own words are not touched, in any script."""
    assert printable("prüfung · 数据 [x]") == "prüfung · 数据 [x]"


def test_events_refusals_and_holders_show_foreign_text_as_text() -> None:
    """These are what log lines, exceptions and states are made of."""
    holder = Holder(FOREIGN, FOREIGN, 1)
    event = Event(kind=Kind.LOST, task=FOREIGN, key=FOREIGN, run_id=FOREIGN, reason=FOREIGN, holder=holder)

    for text in (
        event,
        holder,
        Busy(Reason.RUNNING, FOREIGN, 1.0, holder),
        Failure(FOREIGN).format_message(),
    ):
        assert str(text).isprintable()
    assert spoken(FOREIGN).isprintable()


@pytest.mark.parametrize("argument", [FOREIGN, LeaseLost(FOREIGN), [FOREIGN]])
def test_no_argument_of_a_log_line_can_forge_another(
    argument: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors of drivers and other people's objects are as foreign as run ids."""
    logger.log(logging.WARNING, "run %s ended after %d s: %s", argument, 3, FOREIGN)

    assert caplog.records[-1].getMessage().isprintable()
    assert "after 3 s" in caplog.text


def test_what_operators_read_of_a_record_is_text() -> None:
    """A record's runs, holder and name are whatever its writer liked."""
    record = Record(
        token="t", run_id=FOREIGN, held=True, expires_ms=9000, ttl_ms=9000, started_ms=1,
        holder=Holder(FOREIGN, FOREIGN, 1).encode(), slot=FOREIGN, slot_expires_ms=9000,
        refused=1, refused_ms=1, refused_reason=FOREIGN, runs=(Run(FOREIGN, 0, False),),
    )  # fmt: skip
    entry = Entry("singleflight:jobs[/x]:{00112233445566778899aabbccddeeff}", View(Look(record, 1000, 5000)))

    assert all(line.isprintable() for line in (*entry.lines(), *entry.paragraph()))
    out = io.StringIO()
    Console(file=out, width=120, highlight=False).print(_table([entry], wide=True))
    assert "jobs[/x]" in out.getvalue()
    assert "\x1b" not in out.getvalue()
