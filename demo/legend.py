"""What the signs of the picture look like, and the row that explains them; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from demo.scenario import IMPORT, REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

COLOURS = {
    REPORT.task: "#4361c9",
    "account 1": "#12876f",
    "account 2": "#3f9fd1",
    "account 3": "#8a4fae",
    IMPORT.task: "#c9821b",
}
RED, PALE, FAINT = "#d1202f", "#5f6b7a", "#e8ecf1"
STYLE = f"""
text {{ font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2933; }}
.title {{ font-size: 25px; font-weight: 650; }}
.lead {{ font-size: 15px; fill: {PALE}; }}
.lane {{ font-size: 13px; }}
.axis, .legend {{ font-size: 12.5px; fill: {PALE}; }}
.group {{ font-size: 11px; font-weight: 650; fill: {PALE}; letter-spacing: 0.06em; }}
.bar {{ font-size: 11px; fill: #fff; font-weight: 600; text-anchor: middle; }}
.kill {{ font-size: 13px; font-weight: 650; fill: {RED}; }}
"""
DEAD = (
    '<pattern id="dead" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="2.5" height="7" fill="{RED}" opacity="0.45"/></pattern>'
)
"""The hatching of the time for which a dead run's lease blocks its key."""
FOOT = 140
"""Height below the lanes: the axis, and three rows of legend."""


def tick(x: float, y: float, colour: str, fill: str) -> str:
    """Draw a tick that a beat sent."""
    return f'<circle cx="{x:.1f}" cy="{y:g}" r="6.5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def skip(x: float, y: float, colour: str) -> str:
    """Draw a run that was skipped."""
    return f'<circle cx="{x:.1f}" cy="{y:g}" r="4" fill="#fff" stroke="{colour}" stroke-width="2"/>'


def deferral(x: float, y: float, colour: str) -> str:
    """Draw a run that was put off."""
    return f'<path d="M{x - 4:.1f} {y - 6:g}l9 6l-9 6z" fill="#fff" stroke="{colour}" stroke-width="2"/>'


def cross(x: float, y: float) -> str:
    """Draw a SIGKILL."""
    ends = f"M{x - 8:.1f} {y - 8:g}l16 16m0 -16l-16 16"
    return (
        f'<path d="{ends}" stroke="#fff" stroke-width="7" stroke-linecap="round"/>'
        f'<path d="{ends}" stroke="{RED}" stroke-width="3.6" stroke-linecap="round"/>'
    )


def legend(y: float) -> Iterator[str]:
    """Draw the rows that explain colours and signs."""
    bars = [(bar(0, -10, 26, colour), f"{key.replace('_', ' ')} runs") for key, colour in COLOURS.items()]
    marks = [
        (tick(9, -4, PALE, PALE), "a tick that ran"),
        (tick(9, -4, PALE, "#fff"), "a tick that was skipped"),
        (f'<path d="M9 -9v10" stroke="{PALE}" stroke-width="2.4"/>', "a click or an upload"),
        (skip(9, -4, PALE), "a duplicate is skipped"),
        (deferral(9, -4, PALE), "a run is deferred and comes back"),
    ]
    troubles = [
        (cross(9, -4), "a process is killed"),
        ('<rect y="-11" width="26" height="14" fill="url(#dead)"/>', "its lease still blocks the key"),
        (bar(0, -10, 26, "#fff", RED), "the run that was killed, and its second try"),
    ]
    for row, items in enumerate((bars, marks, troubles)):
        x = 32.0
        for sign, text in items:
            yield f'<g transform="translate({x:g} {y + 26 * row:g})">{sign}'
            yield f'<text class="legend" x="34">{text}</text></g>'
            x += 66 + 6.9 * len(text)


def bar(x: float, y: float, width: float, fill: str, frame: str = "") -> str:
    """Draw a small bar as runs are drawn."""
    stroke = f' stroke="{frame}" stroke-width="2.5"' if frame else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="13" rx="3" fill="{fill}"{stroke}/>'
