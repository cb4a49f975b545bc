"""A picture of the history of one key: who asked, was told what, held and worked when; an SVG file, pure."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tests.torture.history import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.torture.history import History
    from tests.torture.judge import Fault

WIDTH, LEFT, LANE, TOP = 1200, 130, 46, 60
COLOURS = {
    "granted": "#2f7d4f", "busy": "#b9c0ca", "renewed": "#7fb58f", "restored": "#c98a1b",
    "lost": "#c0392b", "ours": "#33557f", "not ours": "#c98a1b", "": "#e3b7b2",
}  # fmt: skip


def draw(history: History, fault: Fault) -> str:
    """Return the SVG of a part of a history, a lane for each client, the fault as a red line."""
    times = [one.called for one in history.requests] + [body.started for body in history.bodies]
    ends = [one.returned for one in history.requests if one.returned != NEVER]
    ends += [body.seen for body in history.bodies]
    begin, end = min(times, default=0.0), max([*ends, fault.at, *times])
    scale = (WIDTH - LEFT - 20) / max(end - begin, 0.001)
    lanes = sorted({one.who for one in (*history.requests, *history.bodies)})

    def x(at: float) -> float:
        return LEFT + (min(at, end) - begin) * scale

    height = TOP + LANE * len(lanes) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="12">',
        f'<g font-family="sans-serif"><rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="10" y="20">{escape(fault.rule)}, {escape(fault.key)}: {escape(fault.text)}</text>',
        f'<text x="10" y="40">{end - begin:.3f} s in all; seed {history.about.get("seed")}</text>',
        *_lanes(history, lanes, x),
        f'<path d="M{x(fault.at):.1f} {TOP - 10}V{height - 30}" stroke="#c0392b" stroke-dasharray="3 3"/>',
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _lanes(history: History, lanes: list[str], x: Callable[[float], float]) -> Iterator[str]:
    for number, who in enumerate(lanes):
        y = TOP + LANE * number
        yield f'<text x="8" y="{y + 20}">{escape(who)}</text>'
        for body in (one for one in history.bodies if one.who == who):
            story = f"{body.run}, fence {body.fence}, {body.how or 'killed'}"
            width = max(1.5, x(body.seen) - x(body.started))
            held = max(0.0, x(body.held_until) - x(body.started))
            yield f"<g><title>{escape(story)}</title>"
            place = f'x="{x(body.started):.1f}" y="{y}" height="20"'
            yield f'<rect {place} width="{width:.1f}" fill="#dbe4f0"/>'
            yield f'<rect {place} width="{held:.1f}" fill="#6d8fc0"/></g>'
        for one in (one for one in history.requests if one.who == who):
            told = " ".join(f"{name}={value}" for name, value in one.told.items())
            story = f"{one.what} of {one.asked['run_id']}: {one.answer or 'no answer'} {told}"
            width = max(2.0, x(one.returned) - x(one.called))
            place = f'x="{x(one.called):.1f}" y="{y + 24}" width="{width:.1f}" height="10"'
            yield f"<g><title>{escape(story)}</title><rect {place} fill='{COLOURS[one.answer]}'/></g>"
