"""The demo's picture: one file that needs nothing else, with everybody and everything in it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from demo.facts import Facts
from demo.scenario import acts
from demo.timeline import draw
from demo.verdict import judge

if TYPE_CHECKING:
    from typing import Any

SVG = "{http://www.w3.org/2000/svg}"


def played(*more: dict[str, Any]) -> Facts:
    """Return a small demo: one tick runs and is killed, runs again, and a second one is skipped."""
    worker = {"process": "worker 1", "pid": 11}
    beat = {"event": "sent", "process": "beat 1", "pid": 5, "task": "report", "key": "report"}
    body = {"event": "start", "task": "report", "key": "report", "run": "r1", "fence": 3}
    facts = Facts()
    facts.add(
        [
            *(
                {"event": "up", "at": 0.0, "process": "demo", "pid": 1, "whom": name}
                for name in ("beat 1", "users")
            ),
            {"event": "open", "at": 0.0, "process": "demo", "pid": 1, "slot": 0},
            {**beat, "at": 0.1, "run": "r1", "slot": 0},
            {**body, "at": 0.2, **worker, "body": "b1"},
            {"event": "kill", "at": 1.5, "process": "demo", "pid": 1, "whom": "worker 1", "victim": 11},
            {**beat, "at": 2.0, "run": "r2", "slot": 1},
            {**body, "at": 3.0, "process": "worker 1", "pid": 12, "body": "b2"},
            {
                "event": "said",
                "at": 3.5,
                **worker,
                "kind": "skipped",
                "task": "report",
                "run": "r2",
                "text": "<&>",
            },
            {"event": "end", "at": 6.2, "process": "worker 1", "pid": 12, "body": "b2", "how": "returned"},
            *more,
        ]
    )
    return facts


def test_the_picture_is_one_file_with_a_lane_for_each_process() -> None:
    """The SVG parses, refers to nothing outside, and names every process, kill and mark."""
    facts = played()
    picture = draw(facts, judge(facts))
    root = ET.fromstring(picture)

    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    lanes = [text for text in texts if text in ("beat 1", "users", "worker 1, pid 11", "worker 1, pid 12")]
    assert lanes == ["beat 1", "users", "worker 1, pid 11", "worker 1, pid 12"]
    assert any("a process of worker 1 is killed" in text for text in texts)
    assert "report again" in texts
    assert "1 overlaps" not in "".join(texts)
    assert picture.count("http") == 1
    assert not any("href" in name for element in root.iter() for name in element.attrib)


def test_bars_stand_where_and_as_long_as_bodies_ran() -> None:
    """A body of 3.2 seconds is drawn 3.2 / 1.3 times as wide as one that was killed after 1.3."""
    facts = played()
    root = ET.fromstring(draw(facts, judge(facts)))

    bars = {
        title.text.split("run ")[-1] + title.text.split(", ")[-1].split(";")[0]: group.find(f"{SVG}rect")
        for group in root.iter(f"{SVG}g")
        if (title := group.find(f"{SVG}title")) is not None and "fence" in (title.text or "")
    }
    first, second = bars["r1killed"], bars["r1returned"]
    assert abs(float(second.get("width")) / float(first.get("width")) - 3.2 / 1.3) < 0.01
    assert float(first.get("x")) + float(first.get("width")) < float(second.get("x"))


def test_an_empty_demo_can_be_drawn() -> None:
    """A log in which nothing happened still gives a picture."""
    facts = Facts()

    assert ET.fromstring(draw(facts, judge(facts))).tag == f"{SVG}svg"


def test_users_click_ten_times_for_every_account_and_are_done_before_the_end() -> None:
    """Every account gets its ten clicks twice, within even the shortest demo."""
    plan = acts(12)

    for account in ("1", "2", "3"):
        clicks = [act for act in plan if act.task == "recalculate" and act.argument == account]
        assert len(clicks) == 20
    assert sum(act.task == "import_file" for act in plan) == 3
    assert all(0 <= act.at < 12 - 2 for act in plan)
