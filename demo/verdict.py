"""What came of it, judged on what beats, users and task bodies wrote down themselves; pure.

The product's own word is taken for counts (skipped, deferred) and never for a judgement: a run
that it says it skipped is lost unless the bodies show that it could be spared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from demo.scenario import TTL, WORKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.facts import Body, Facts, Sent

SLACK = 1.0
"""Seconds that may pass on a busy machine between a lease and the line that its body writes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers, and a sentence for each thing that went wrong."""

    ticks_due: int
    ticks_sent: int
    runs: int
    """Bodies that ran to their end."""
    skipped: int
    deferred: int
    taken_over: int
    """Runs whose process was killed, and that another one brought to their end."""
    overlaps: int
    """Pairs of bodies of one key that ran at one time."""
    lost: int
    """Ticks that were due and not sent; runs that neither ended nor could be spared."""
    doubled: int
    """Ticks that were sent again; runs that ended again."""
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing overlapped, was lost or doubled."""
        return not (self.overlaps or self.lost or self.doubled)


def judge(facts: Facts) -> Verdict:
    """Judge a demo that is over."""
    overlaps = [f"{one.key}: {one.body} and {two.body} ran at once" for one, two in overlapping(facts)]
    lost = [*_lost_ticks(facts), *_lost_runs(facts)]
    doubled = list(_doubled(facts))
    returned = [body for body in facts.bodies.values() if body.how == "returned"]
    return Verdict(
        ticks_due=len(due(facts)),
        ticks_sent=sum(sent.by_beat for sent in facts.sent),
        runs=len(returned),
        skipped=len(facts.runs_said("skipped")),
        deferred=len(facts.runs_said("deferred")),
        taken_over=len(taken_over(facts)),
        overlaps=len(overlaps),
        lost=len(lost),
        doubled=len(doubled),
        problems=(*overlaps, *lost, *doubled),
    )


def due(facts: Facts) -> range:
    """Return the slots whose tick was due: on the clock, from the first one sent or the opening on."""
    if facts.opened is None:
        return range(0)
    slots = [sent.slot for sent in facts.sent if sent.by_beat]
    first = min([facts.opened[1], *slots])
    last = max([first - 1, *slots]) if facts.closed is None else max([facts.closed[1], *slots])
    return range(first, last + 1)


def taken_over(facts: Facts) -> set[str]:
    """Return the runs that came to their end although a process was killed while it was at them."""
    how = {(body.run, body.how) for body in facts.bodies.values()}
    return {run for run, _ in how if {(run, "killed"), (run, "returned")} <= how}


def overlapping(facts: Facts) -> list[tuple[Body, Body]]:
    """Return every pair of bodies of one key that ran at one instant; one without an end still runs."""
    return [
        (one, two)
        for one, two in combinations(sorted(facts.bodies.values(), key=lambda body: body.started), 2)
        if one.key == two.key and (one.ended is None or two.started < one.ended)
    ]


def _lost_ticks(facts: Facts) -> Iterator[str]:
    sent = {tick.slot for tick in facts.sent if tick.by_beat}
    for slot in due(facts):
        if slot not in sent:
            yield f"the tick of slot {slot} was due and no beat sent it"


def _lost_runs(facts: Facts) -> Iterator[str]:
    unfinished, skipped = facts.unfinished(), facts.runs_said("skipped")
    returned = {body.run for body in facts.bodies.values() if body.how == "returned"}
    for run in {sent.run: sent for sent in reversed(facts.sent)}.values():
        if run.run in unfinished:
            yield f"{run.key}: run {run.run} was published and has not come to an end"
        elif run.run not in returned and not _could_be_spared(run, skipped[run.run], facts):
            yield f"{run.key}: run {run.run} was skipped although nothing did its work"


def _could_be_spared(run: Sent, skipped_at: float, facts: Facts) -> bool:
    same = [body for body in facts.bodies.values() if body.key == run.key]
    match WORKS[run.task].duplicates:
        case "skip":  # another one was at it, or had been killed at it and its lease was alive
            return any(
                body.started - SLACK <= skipped_at and (body.ended is None or skipped_at <= _blocks(body))
                for body in same
            )
        case "coalesce":  # another one began after this was asked for, and came to its end
            return any(body.started >= run.at and body.how == "returned" for body in same)
        case "defer":
            return False


def _blocks(body: Body) -> float:
    assert body.ended is not None
    return body.ended + SLACK + (TTL if body.how == "killed" else 0)


def _doubled(facts: Facts) -> Iterator[str]:
    for slot, times in Counter(sent.slot for sent in facts.sent if sent.by_beat).items():
        for _ in range(times - 1):
            yield f"the tick of slot {slot} was sent {times} times"
    published = {sent.run for sent in facts.sent}
    ended = Counter(body.run for body in facts.bodies.values() if body.how == "returned")
    for run, times in ended.items():
        for _ in range(times - (run in published)):
            yield f"run {run} was published {'once' if run in published else 'never'} and ended {times} times"
