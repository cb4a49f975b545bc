"""The judge finds what is wrong with histories, each in its way, and nothing in those that are right."""

from __future__ import annotations

import pytest

from tests.torture.history import History, Sent, Tick, read, write
from tests.torture.judge import judge
from tests.torture.picture import draw
from tests.torture.shrink import shrink
from tests.torture.written import KEY, Written


def rules(history: History) -> set[str]:
    """Return which rules a history breaks."""
    return {fault.rule for fault in judge(history)}


RIGHT = {
    "one after another": (
        Written().grant("a", 0, 1).body("a", 0.1, 0.5, 1)
        .release("a", 0.5).grant("b", 0.6, 2)
    ),
    "a lapse and a take-over": Written().grant("a", 0, 1).grant("b", 1.2, 2, took_over=True),
    "a refusal while it lives": Written().grant("a", 0, 1).refuse("b", 0.9, "running", "run-a"),
    "a renewal after a lapse that nobody used": Written().grant("a", 0, 1).renew("a", 3).renew("a", 3.5),
    "a claim again whose reply was lost": Written().ask("claim", "a", 0, 0, "").grant("a", 0.5, 1),
    "a take-over whose first reply was lost": (
        Written()
        .grant("a", 0, 1)
        .ask("claim", "b", 1.2, 1.6, "granted", {"fence": 2, "took_over": False})
        .renew("b", 1.7)
    ),
    "a late claim that nobody heard of": (
        Written().ask("claim", "a", 0, 0, "")
        .refuse("b", 0.4, "running", "run-a").grant("b", 2, 9, took_over=True)
    ),
    "a release that nobody heard of": (
        Written().grant("a", 0, 1)
        .ask("release", "a", 0.2, 0, "").grant("b", 0.3, 2)
    ),
    "a release that was sent twice, because its first reply was lost": (
        Written()
        .grant("a", 0, 1)
        .ask("release", "a", 0.1, 0.4, "not ours")
        .grant("b", 0.2, 2)
    ),
    "an end that is recorded by one who never claimed": Written().release("", 0, "not ours").grant("a", 1, 1),
    "a run that comes back": (
        Written()
        .grant("a", 0, 1, run_id="r")
        .release("a", 0.3, outcome="requeued", run_id="r")
        .grant("b", 0.4, 2, run_id="r")
    ),
    "a late copy": (
        Written().grant("a", 0, 1, run_id="r").release("a", 0.3, run_id="r")
        .refuse("b", 0.4, "finished", run_id="r")
    ),
    "a body that lost its lease and went on": (
        Written().body("a", 0, 5, 1, held_until=0.9).body("b", 1.2, 2, 2).body("c", 2.5, 3, 3)
    ),
    "a window that is kept": (
        Written().grant("a", 0, 1, window_ms=500).body("a", 0, 0.1, 1).release("a", 0.1)
        .refuse("b", 0.3, "window", window_ms=500).grant("c", 0.6, 2, window_ms=500).body("c", 0.6, 0.7, 2)
    ),
    "a window that was given back by one who never began, and began later": (
        Written()
        .grant("a", 0, 1, window_ms=500, run_id="r")
        .release("a", 0.1, outcome="requeued", run_id="r")
        .grant("b", 0.2, 2, window_ms=500)
        .body("b", 0.2, 0.3, 2)
        .release("b", 0.3)
        .grant("c", 0.9, 3, window_ms=500, run_id="r")
        .body("c", 0.9, 1, 3, run="r")
    ),
    "a run whose first holder records its end while the second begins": (
        Written()
        .grant("a", 0, 1, run_id="r")
        .grant("b", 1.2, 2, run_id="r", took_over=True)
        .release("a", 1.22, "not ours", run_id="r")
        .body("b", 1.3, 1.5, 2, run="r")
    ),
    "a grace that ends": (
        Written().grant("a", 0, 1).release("a", 0.1, grace_ms=200)
        .grant("b", 0.4, 2, took_over=True)
    ),
    "two at one moment": (
        Written()
        .ask("claim", "a", 0, 0.5, "granted", {"fence": 1, "took_over": False})
        .ask("claim", "b", 0, 0.5, "busy", {"reason": "running", "run": "run-a"})
    ),
}  # fmt: skip

WRONG = {
    "overlap": {
        "two who both held": Written().body("a", 0, 1, 1).body("b", 0.9, 2, 2),
        "one within another's long one": (
            Written().body("a", 0, 9, 1).body("b", 1, 2, 2, held_until=0).body("c", 5, 6, 3)
        ),
    },
    "fence": {
        "a fence that falls": (
            Written().grant("a", 0, 7).release("a", 0.1)
            .grant("b", 0.2, 6).release("b", 0.3)
        ),
        "a fence that is given twice": Written().grant("a", 0, 7).release("a", 0.1).grant("b", 0.2, 7),
    },
    "guard": {"a refused holder": Written().body("a", 0, 1, 1, refused=(0.5,))},
    "copy": {
        "a copy of a finished run": (
            Written().grant("a", 0, 1, run_id="r")
            .release("a", 0.3, run_id="r").grant("b", 0.4, 2, run_id="r")
        ),
        "a copy of a failed run": (
            Written()
            .grant("a", 0, 1, run_id="r")
            .release("a", 0.3, outcome="failed", run_id="r")
            .grant("b", 0.4, 2, run_id="r")
        ),
    },
    "window": {
        "a start too early": (
            Written().grant("a", 0, 1, window_ms=500).body("a", 0, 0.1, 1).release("a", 0.1)
            .grant("c", 0.3, 2, window_ms=500).body("c", 0.3, 0.4, 2)
        )
    },
    "double": {
        "a body after the end of its run": (
            Written().grant("a", 0, 1).body("a", 0, 0.2, 1)
            .release("a", 0.2).body("x", 0.5, 0.6, 2, run="run-a")
        )
    },
    "order": {
        "two live grants": Written().grant("a", 0, 1).grant("b", 0.5, 2, took_over=True),
        "a grant a moment too early": Written().grant("a", 0, 1).grant("b", 0.9, 2, took_over=True),
        "a refusal by nobody": (
            Written().grant("a", 0, 1).release("a", 0.1)
            .refuse("b", 0.3, "running", "run-a")
        ),
        "a refusal long after the end": Written().grant("a", 0, 1).refuse("b", 1.5, "running", "run-a"),
        "a renewal by one whom another followed": (
            Written().grant("a", 0, 1).grant("b", 1.2, 2, took_over=True).renew("a", 1.4)
        ),
        "a renewal after the release": Written().grant("a", 0, 1).release("a", 0.1).renew("a", 0.2),
        "a renewal that was refused": Written().grant("a", 0, 1).renew("a", 0.2, "lost"),
        "a renewal that shortens": (
            Written().grant("a", 0, 1).renew("a", 0.8).grant("b", 1.2, 2, took_over=True)
        ),
        "a release of another's lease": (
            Written().grant("a", 0, 1).grant("b", 1.2, 2, took_over=True).release("a", 1.3).grant("c", 1.4, 3)
        ),
        "a release that was not ours, and was": Written().grant("a", 0, 1).release("a", 0.2, "not ours"),
        "a copy that was taken for ended": (
            Written().grant("a", 0, 1, run_id="r").refuse("b", 0.3, "finished", run_id="r")
        ),
        "another's run for one's own": Written().grant("a", 0, 1).refuse("b", 0.3, "same_run", "run-a"),
        "a claim again that got another grant": Written().grant("a", 0, 1).grant("a", 0.2, 2),
        "a claim again that was refused": Written().grant("a", 0, 1).refuse("a", 0.2, "same_run", "run-a"),
        "a take-over that was not told": Written().grant("a", 0, 1).grant("b", 1.2, 2),
        "a take-over from nobody": (
            Written().grant("a", 0, 1).release("a", 0.2)
            .grant("b", 0.4, 2, took_over=True)
        ),
        "a record that was forgotten": Written().grant("a", 0, 1).renew("a", 0.3, "restored"),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_where_nothing_is_wrong(name: str) -> None:
    """Also where requests overlapped, came late, or were never answered."""
    assert judge(RIGHT[name].history()) == []


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, own in WRONG.items() for name in own])
def test_what_is_wrong_is_found(rule: str, name: str) -> None:
    """By the rule that it breaks."""
    assert rule in rules(WRONG[rule][name].history())


def test_a_message_that_never_ran_is_lost() -> None:
    """Unless its result says why."""
    sent = Sent("run-x", "late", KEY, 0.0, "once")

    assert rules(History(sent=(sent,))) == {"lost"}
    assert rules(History(sent=(Sent("run-x", "late", KEY, 0.0, "once", "skipped", "running"),))) == set()
    assert rules(Written().body("x", 0, 1, 1).history(sent=(sent,))) == set()
    assert rules(Written().body("x", 0, 1, 1, how="").history(sent=(sent,))) == {"lost"}


def test_ticks_are_sent_once_each() -> None:
    """A copy has the same id; another id for one due time is one too many, and a hole is one too few."""
    about = {"every": {"beat": 1.0}}
    fine = [Tick("beat", float(due), due + 0.1, f"beat@{due}") for due in range(4)]

    assert rules(History(ticks=(*fine, fine[2]), about=about)) == set()
    assert rules(History(ticks=(*fine, Tick("beat", 2.1, 2.2, "other")), about=about)) == {"tick"}
    assert rules(History(ticks=(*fine[:1], *fine[2:]), about=about)) == {"tick"}


def test_a_history_is_read_as_it_was_written() -> None:
    """Each of those above; a line that a kill has torn is left out."""
    for own in (RIGHT, *WRONG.values()):
        for written in own.values():
            history = written.history(sent=(Sent("r", "late", KEY, 1.0, "once", "skipped"),))
            assert read([*write(history), '{"event": "ca']) == history


def test_the_shortest_part_is_found() -> None:
    """Of many grants, those two stay that contradict each other."""
    written = Written()
    for number in range(30):
        at = number * 0.4
        written.grant(f"t{number}", at, number + 1).release(f"t{number}", at + 0.1)
    written.grant("a", 12.1, 50).grant("b", 12.5, 51, took_over=True)
    for number in range(30):
        written.refuse(f"u{number}", 12.2 + number / 1000, "running", "run-a")
    history = written.history()
    [fault] = judge(history)

    part = shrink(history, fault, judge)

    assert [one.asked["token"] for one in part.requests] == ["a", "b"]
    assert "order" in draw(part, fault)
