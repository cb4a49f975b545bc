"""What the signs of the picture look like, and the row that explains them; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singleflight.cli.demo.scenario import IMPORT, REPORT

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
text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2933; }}
.title {{ font-size: 25px; font-weight: 650; }}
.lead {{ font-size: 15px; fill: {PALE}; }}
.lane {{ font-size: 13px; }}
.axis, .legend {{ font-size: 12.5px; fill: {PALE}; }}
.group {{ font-size: 11px; font-weight: 650; fill: {PALE}; letter-spacing: 0.06em; }}
.bar {{ font-size: 11.5px; fill: #fff; font-weight: 600; }}
.kill {{ font-size: 13px; font-weight: 650; fill: {RED}; }}
"""
FOOT = 128
"""Height below the lanes: the axis, and two rows of legend."""


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
    """Draw the two rows that explain colours and signs."""
    x = 32.0
    for key, colour in COLOURS.items():
        yield f'<rect x="{x:g}" y="{y - 10:g}" width="26" height="13" rx="3" fill="{colour}"/>'
        text = f"{key.replace('_', ' ')} runs"
        yield _words(x + 34, y, text)
        x += 62 + 7.2 * len(text)
    x, y = 32.0, y + 30
    signs = [
        (tick(8, y - 4, PALE, PALE), "tick that ran"),
        (tick(8, y - 4, PALE, "#fff"), "tick that was skipped"),
        (f'<path d="M8 {y - 8:g}v8" stroke="{PALE}" stroke-width="2.4"/>', "click or upload"),
        (skip(8, y - 4, PALE), "skipped: a duplicate"),
        (deferral(8, y - 4, PALE), "deferred: comes back"),
        (cross(8, y - 4), "killed"),
        (
            f'<rect x="0" y="{y - 11:g}" width="18" height="14" fill="url(#dead)"/>',
            "a dead run's lease blocks its key",
        ),
        (
            f'<rect x="0" y="{y - 11:g}" width="18" height="13" rx="3" fill="#fff" stroke="{RED}" stroke-width="2.5"/>',
            "the killed run, and its second try",
        ),
    ]
    for sign, text in signs:
        yield f'<g transform="translate({x:g} 0)">{sign}</g>'
        yield _words(x + 24, y, text)
        x += 50 + 7.0 * len(text)


def _words(x: float, y: float, text: str) -> str:
    return f'<text class="legend" x="{x:g}" y="{y:g}">{text}</text>'
