"""Each rule of the line is needed: without it, some random history breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from singleflight.stores import line, line_call, line_rules, memory_line
from singleflight.stores.lining import Kind, Standing
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock
from tests.stores.line_walks import CONFIGS, walk
from tests.stores.line_world import REMEMBER, Broken, World

if TYPE_CHECKING:
    from collections.abc import Callable

Patch = pytest.MonkeyPatch


def nobody_is_ahead(patch: Patch) -> None:
    """A claim looks only at the lease: whoever comes first is first."""
    patch.setattr(line_rules.Place, "ahead_ms", lambda *_, **__: 0)


def only_calls_reserve(patch: Patch) -> None:
    """Those who are ready are passed until somebody has called them."""

    def ahead_ms(place: Any, *_: Any, **__: Any) -> int:
        called = place.step.line.of(Standing.CALLED)
        return 1 if any(map(place.is_ahead, called)) else 0

    patch.setattr(line_rules.Place, "ahead_ms", ahead_ms)


def a_refused_call_keeps_its_number(patch: Patch) -> None:
    """A late `sent`, said after the message has arrived and parked again, takes it away."""
    whole = line_rules._uncalled

    def uncalled(step: Any, entry: Any) -> Any:
        after = replace(whole(step, entry), call_no=entry.call_no)
        step.line.put(after)
        return after

    patch.setattr(line_rules, "_uncalled", uncalled)


def a_lower_attempt_replaces_a_higher(patch: Patch) -> None:
    """The parked message of a retry is overwritten by a late copy of the attempt before."""
    whole = line_rules._wait

    def wait(step: Any, entry: Any, asked: Any, *more: Any, **options: Any) -> int:
        if entry is not None:
            entry = replace(entry, attempt=min(entry.attempt, asked.attempt))
        return whole(step, entry, asked, *more, **options)

    patch.setattr(line_rules, "_wait", wait)


def nothing_leaves_when_it_is_over(patch: Patch) -> None:
    """Entries of attempts that are done stay."""
    patch.setattr(line_call.Step, "remove", lambda *_: None)


def lives_never_end(patch: Patch) -> None:
    """A message that was published and lost keeps its entry for ever."""
    _settle_with(patch, lambda entry: replace(entry, ends_ms=0))


def nobody_is_passed_over(patch: Patch) -> None:
    """A head that cannot be published is called for ever."""
    whole = line.settled
    patch.setattr(
        *(line_call, "settled"),
        lambda entry, now_ms: whole(replace(entry, in_hand=False, hailed=False), now_ms),
    )


def only_some_homes_are_indexed(patch: Patch) -> None:
    """A key is looked at only for the home that came last to its line."""
    whole = line_call.touch

    def touch(step: Any, **options: Any) -> None:
        homes = step.record.homes
        step.record = replace(step.record, homes=homes.rpartition("\n")[2])
        whole(step, **options)
        step.record = replace(step.record, homes=homes)

    patch.setattr(line_call, "touch", touch)


def nobody_is_indexed(patch: Patch) -> None:
    """No sweep ever comes."""
    patch.setattr(memory_line.MemoryLine, "index", lambda *_, **__: None)


def dropping_forgets(patch: Patch) -> None:
    """A dropped run leaves the line at once, and its copy starts."""
    whole = line_rules.drop

    def drop(step: Any, run_id: str) -> Any:
        _, marked = whole(step, run_id)
        entry = step.line.find(run_id)
        if marked and entry is not None:
            step.remove(entry)
        return step.record, marked

    patch.setattr(line_rules, "drop", drop)


def nobody_looks_who_joins(patch: Patch) -> None:
    """Who joins waits for a release, which a killed run never makes."""
    whole = line.placed

    def placed(entry: Any, now_ms: int) -> Any:
        after = whole(entry, now_ms)
        joins = after.kind is Kind.JOINING and not after.until_ms
        return replace(after, moment_ms=after.ends_ms) if joins else after

    patch.setattr(line_call, "placed", placed)
    patch.setattr(line_rules, "placed", placed)


def clocks_never_step(patch: Patch) -> None:
    """Moments stay in the future of a clock that was set back."""
    patch.setattr(line_call, "STEP_MS", 1 << 60)


def the_index_never_steps(patch: Patch) -> None:
    """The index stays in the future of a clock that was set back."""
    whole = memory_line.Index.due

    def due(index: Any, *more: Any) -> Any:
        index.looked_ms = 0
        return whole(index, *more)

    patch.setattr(memory_line.Index, "due", due)


def _settle_with(patch: Patch, change: Callable[[Any], Any]) -> None:
    whole = line.settled
    patch.setattr(line_call, "settled", lambda entry, now_ms: whole(change(entry), now_ms))


MUTANTS: dict[Callable[[Patch], None], list[str]] = {
    nobody_is_ahead: ["plain"],
    only_calls_reserve: ["plain"],
    a_refused_call_keeps_its_number: ["plain"],
    a_lower_attempt_replaces_a_higher: ["retries"],
    nothing_leaves_when_it_is_over: ["plain"],
    lives_never_end: ["lost by the broker"],
    nobody_is_passed_over: ["unpublishable"],
    only_some_homes_are_indexed: ["homes", "home gone"],
    nobody_is_indexed: ["plain"],
    dropping_forgets: ["drops"],
    nobody_looks_who_joins: ["joins, early"],
    clocks_never_step: ["clock"],
    the_index_never_steps: ["clock"],
}

WALKS = 1500


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_line_without_a_rule_is_caught(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """A history is found that breaks the line which lacks the rule."""
    mutant(monkeypatch)

    assert any(_breaks(name) for name in MUTANTS[mutant])


def _breaks(name: str) -> bool:
    for seed in range(WALKS):
        clock = FakeClock()
        store = MemoryStore(clock=clock, remember=REMEMBER)
        try:
            walk(World(store, clock, CONFIGS[name], "singleflight:key"), seed)
        except (Broken, KeyError):
            return True
    return False
