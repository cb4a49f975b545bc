"""A report as one picture: horizontal bars in an SVG that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from benchmarks.support.tables import text_of

if TYPE_CHECKING:
    from benchmarks.support.report import Report

ROW, TOP, LABELS, BARS, MARGIN = 24, 40, 260, 360, 90
STYLE = (
    "text{font:13px sans-serif;fill:#24292f} .title{font-weight:bold} rect{fill:#8c959f} .ours{fill:#0969da}"
)


def draw(report: Report) -> str:
    """Return the picture of the report's plotted column; ours in blue."""
    label = report.columns[0]
    rows = [
        (str(row[label]), value) for row in report.rows if isinstance(value := row[report.plot], int | float)
    ]
    longest = max((value for _, value in rows), default=1) or 1
    height, width = TOP + ROW * len(rows) + 10, LABELS + BARS + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" style="fill:#fff"/>',
        f'<text class="title" x="10" y="22">{escape(report.title)}: {escape(report.plot)}</text>',
    ]
    for place, (name, value) in enumerate(rows):
        top = TOP + ROW * place
        ours = ' class="ours"' if name.startswith("singleflight") else ""
        length = value / longest * BARS
        parts += [
            f'<text x="{LABELS - 10}" y="{top + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect{ours} x="{LABELS}" y="{top + 3}" width="{max(1, length):.0f}" height="16"/>',
            f'<text x="{LABELS + length + 6:.0f}" y="{top + 15}">{text_of(value)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
