"""The picture of a demo: one SVG file that needs nothing else; pure."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from demo.lanes import LEFT, RIGHT, TOP, WIDTH, Layout
from demo.legend import (
    COLOURS,
    DEAD,
    FAINT,
    FOOT,
    PALE,
    RED,
    STYLE,
    cross,
    deferral,
    legend,
    skip,
    tick,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.facts import Body, Facts, Kill
    from demo.verdict import Verdict

BAR = 20
LETTER = 6.6
"""Width that a letter of a bar's label needs."""


def draw(facts: Facts, verdict: Verdict) -> str:
    """Return the SVG of a demo that is over."""
    at = Layout(facts)
    height = at.bottom + FOOT
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Timeline of a demo">',
        f"<style>{STYLE}</style>",
        f"<defs>{DEAD}</defs>",
        f'<rect width="{WIDTH}" height="{height:g}" fill="#fff"/>',
        *_head(verdict),
        *_lanes(at, facts),
        *_sent(at, facts),
        *_said(at, facts),
        *_bodies(at, facts),
        *(part for kill in facts.kills for part in _kill(at, facts, kill)),
        *legend(at.bottom + 64),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _head(verdict: Verdict) -> Iterator[str]:
    word = "nothing overlapped, was lost or doubled" if verdict.ok else "this is not as it must be"
    yield f'<text class="title" x="32" y="46">One run at a time: {word}</text>'
    counts = ("runs", "skipped", "deferred", "taken_over", "overlaps", "lost", "doubled")
    numbers = [f"{verdict.ticks_due} ticks due, {verdict.ticks_sent} sent"]
    numbers += [f"{getattr(verdict, count)} {count.replace('_', ' ')}" for count in counts]
    yield f'<text class="lead" x="32" y="76">{" · ".join(numbers)}</text>'


def _lanes(at: Layout, facts: Facts) -> Iterator[str]:
    step = 5 if at.end - at.start > 25 else 2 if at.end - at.start > 10 else 1  # noqa: PLR2004 - readable axes
    second = 0
    while at.start + second < at.end:
        x = at.x(at.start + second)
        yield f'<path d="M{x:.1f} {TOP + 8}V{at.bottom:g}" stroke="{FAINT}"/>'
        yield f'<text class="axis" x="{x:.1f}" y="{at.bottom + 18:g}" text-anchor="middle">{second} s</text>'
        second += step
    for title, y in at.groups:
        yield f'<text class="group" x="32" y="{y:g}">{title}</text>'
    gone = {(kill.process, 0): kill.at for kill in facts.kills}
    gone |= {(kill.process, kill.pid): kill.at for kill in facts.kills}
    for lane in at.lanes:
        ends = at.x(gone.get((lane.process, lane.pid), at.end))
        yield f'<text class="lane" x="32" y="{lane.y + 4.5:g}">{escape(lane.name)}</text>'
        yield f'<path d="M{LEFT} {lane.y:g}H{ends:.1f}" stroke="#c9d1db" stroke-width="1.5"/>'


def _sent(at: Layout, facts: Facts) -> Iterator[str]:
    skipped = facts.runs_said("skipped")
    for sent in facts.sent:
        x, y = at.x(sent.at), at.y(sent.process)
        colour = COLOURS.get(sent.key, PALE)
        came_of_it = "skipped as a duplicate" if sent.run in skipped else "ran"
        yield f"<g><title>{escape(sent.key)}, sent by {sent.process}; {came_of_it}</title>"
        if sent.by_beat:
            fill = "#fff" if sent.run in skipped else colour
            yield f"{tick(x, y, colour, fill)}</g>"
        else:
            # One height for each account, so that clicks at one time stay apart.
            row = y - 9 + 6 * (list(COLOURS).index(sent.key) - 1 if sent.key in COLOURS else 0)
            yield f'<path d="M{x:.1f} {row - 3:.1f}v6" stroke="{colour}" stroke-width="2.4"/></g>'


def _said(at: Layout, facts: Facts) -> Iterator[str]:
    keys = {sent.run: sent.key for sent in facts.sent}
    for said in facts.said:
        mark = {"skipped": skip, "deferred": deferral}.get(said.kind)
        if mark is not None and said.process.startswith("worker"):
            colour = COLOURS.get(keys.get(said.run, ""), PALE)
            drawn = mark(at.x(said.at), at.y(said.process, said.pid), colour)
            yield f"<g><title>{escape(said.text)}</title>{drawn}</g>"


def _bodies(at: Layout, facts: Facts) -> Iterator[str]:
    took_over = facts.runs_said("took_over")
    killed = {body.run for body in facts.bodies.values() if body.how == "killed"}
    for body in facts.bodies.values():
        y, x = at.y(body.process, body.pid), at.x(body.started)
        width = max(2.0, at.x(body.ended or at.end) - x)
        again = body.run in killed and body.how != "killed"
        frame = f' stroke="{RED}" stroke-width="2.5"' if again or body.how == "killed" else ""
        text = _label(body, width, again=again, took_over=body.run in took_over)
        story = f"{body.key}, fence {body.fence}, {width / at.scale:.1f} s, {body.how or 'without an end'}"
        yield f"<g><title>{escape(story)}; run {body.run}</title>"
        yield (
            f'<rect x="{x:.1f}" y="{y - BAR / 2:g}" width="{width:.1f}" height="{BAR}" rx="4" '
            f'fill="{COLOURS.get(body.key, PALE)}"{frame}/>'
        )
        yield f'<text class="bar" x="{x + width / 2:.1f}" y="{y + 4:g}">{text}</text></g>'


def _label(body: Body, width: float, *, again: bool, took_over: bool) -> str:
    words = body.key.replace("_", " ")
    short = words.removeprefix("account ").removesuffix(" file")
    more = f"{words} again" if again else f"{words}, took over" if took_over else words
    fitting = [text for text in (more, words, short) if len(text) * LETTER < width]
    return escape(fitting[0]) if fitting else ""


def _kill(at: Layout, facts: Facts, kill: Kill) -> Iterator[str]:
    x, y = at.x(kill.at), at.y(kill.process, kill.pid)
    victim = facts.victim(kill)
    what = f"a process of {kill.process} is killed in a run" if victim else f"{kill.process} is killed"
    yield f'<path d="M{x:.1f} {TOP - 4}V{at.bottom:g}" stroke="{RED}" stroke-dasharray="3 4" opacity="0.7"/>'
    side = "end" if x > WIDTH - RIGHT - 260 else "start"
    yield f'<text class="kill" x="{x:.1f}" y="{TOP - 12}" text-anchor="{side}">{what} (SIGKILL)</text>'
    if victim is not None:
        again = [body.started for body in facts.bodies.values() if body.key == victim.key]
        width = at.x(min([start for start in again if start > kill.at], default=at.end)) - x
        yield f"<g><title>its lease outlives it: no other run for {width / at.scale:.1f} s</title>"
        place = f'x="{x:.1f}" y="{y - BAR / 2:g}" width="{width:.1f}" height="{BAR}"'
        yield f'<rect {place} fill="url(#dead)"/></g>'
    yield cross(x, y)
