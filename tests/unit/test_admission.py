"""What becomes of an arriving message: the same in Celery, Dramatiq and the documentation's framework."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Outcome
from singleflight.errors import StoreUnavailable
from singleflight.events import Kind
from singleflight.keys import lease_key
from singleflight.stores.base import Claim, Release, Waits
from singleflight.tasks.adapter import Returned
from singleflight.tasks.message import Carried
from tests.support.frameworks import CeleryCase, DramatiqCase, ToyCase
from tests.support.toy_framework import Toy

if TYPE_CHECKING:
    from tests.support.core import Core
    from tests.support.frameworks import Case, Fate

KEY = lease_key("singleflight", "work")
OFTEN = {"deferrals": 5, "waited": 0}
LONG_AGO = {"deferrals": 1, "waited": 3600}


class Setting:
    """One task in one framework, what other runs do to its key, and what becomes of its own message."""

    def __init__(self, core: Core, made: type[Case]) -> None:
        self.core, self.store, self._made = core, core.store, made

    def declare(self, *, observing: bool = False, **options: Any) -> None:
        """Declare the task with these options."""
        self.case = self._made(self.store, observing=observing, **options)
        self.run, self.other = self.case.run, f"before-{self.case.run}"

    def hold(self, run_id: str = "", **claim: Any) -> None:
        """Let a run have the key; it is another one unless said otherwise."""
        run_id = run_id or self.other
        self.store.claim(Claim(KEY, run_id, 0, f"of-{run_id}", 30_000, **claim))

    def end(self, outcome: Outcome = Outcome.FINISHED, run_id: str = "") -> None:
        """Let it give the key back."""
        run_id = run_id or self.other
        self.store.release(Release(KEY, run_id, 0, f"of-{run_id}", outcome))

    def deliver(self, attempt: int = 0, *, redelivered: bool = False, **carried: Any) -> Fate:
        """Let the task's message arrive at a worker; ``waited`` is seconds since its first deferral."""
        if "waited" in carried:
            carried["since"] = time.time() - carried.pop("waited")
        return self.case.deliver(Carried(**carried), attempt, redelivered=redelivered)


@pytest.fixture(params=[CeleryCase, DramatiqCase, ToyCase], ids=["celery", "dramatiq", "toy"])
def setting(core: Core, request: pytest.FixtureRequest) -> Setting:
    """Return a key that nobody has yet."""
    return Setting(core, request.param)


@pytest.mark.parametrize(
    ("options", "arrival", "how", "told"),
    [
        ({}, {}, "skipped", Kind.SKIPPED),
        ({"skip_result": 7}, {}, "answered", Kind.SKIPPED),
        ({"on_conflict": "raise"}, {}, "refused", Kind.REFUSED),
        ({"on_conflict": "defer"}, {}, "deferred", Kind.DEFERRED),
        ({"on_conflict": "coalesce"}, {}, "deferred", Kind.DEFERRED),
        ({"on_conflict": "join"}, {}, "deferred", Kind.DEFERRED),
        ({"on_conflict": "defer", "give_up_after": 60}, LONG_AGO, "skipped", Kind.GAVE_UP),
        ({}, {"attempt": 1}, "deferred", Kind.DEFERRED),
        ({}, {"redelivered": True}, "deferred", Kind.DEFERRED),
        ({}, {"must_run": True}, "deferred", Kind.DEFERRED),
        ({"on_conflict": "raise"}, {"redelivered": True}, "deferred", Kind.DEFERRED),
        ({"observing": True}, {}, "ran", Kind.OBSERVED),
    ],
)
def test_a_run_that_meets_another_one_ends_as_its_policy_says(
    setting: Setting, options: dict[str, Any], arrival: dict[str, Any], how: str, told: Kind
) -> None:
    """And what must run waits, whatever the policy."""
    setting.declare(**options)
    setting.hold()
    fate = setting.deliver(**arrival)

    assert (fate.how, setting.case.told()) == (how, [told])
    if how == "deferred":
        assert fate.carried.deferrals == arrival.get("deferrals", 0) + 1
        assert fate.carried.must_run == (options.get("on_conflict") in (None, "raise"))
        assert fate.carried.joins == (setting.other if options.get("on_conflict") == "join" else None)


def test_a_free_key_lets_a_run_start_and_is_free_again_afterwards(setting: Setting) -> None:
    """Its copy, delivered once more, is dropped."""
    setting.declare()
    fate = setting.deliver()
    copy = setting.deliver()

    assert (fate.how, fate.value) == ("ran", "ran")
    assert setting.case.bodies == 1
    assert not setting.store.record(KEY).held
    assert setting.case.told() == [Kind.DROPPED]
    assert copy.how in ("dropped", "ran")  # the toy shows the result that is there


@pytest.mark.parametrize("on_conflict", ["skip", "defer", "raise", "join", "coalesce"])
def test_a_run_whose_own_copy_is_alive_comes_back_later_and_joins_nobody(
    setting: Setting, on_conflict: str
) -> None:
    """It has not met another run, so there is nobody whose result it could take over."""
    setting.declare(on_conflict=on_conflict)
    setting.hold(setting.run)
    fate = setting.deliver()

    assert fate.how == "deferred"
    assert fate.carried.joins is None


def test_too_soon_after_the_last_start_is_a_conflict_like_another(setting: Setting) -> None:
    """Though nobody has the key."""
    setting.declare(window=60)
    setting.hold(window_ms=60_000)
    setting.end()

    assert setting.deliver().how == "skipped"


@pytest.mark.parametrize(("deferrals", "how"), [(0, "deferred"), (4, "skipped")])
def test_nobody_is_the_duplicate_of_a_run_whose_result_is_known(
    setting: Setting, deferrals: int, how: str
) -> None:
    """Its release follows at once; where it does not, the result is an old one of the same id."""
    setting.declare()
    setting.hold()
    setting.case.know(setting.other, 42)

    assert setting.deliver(deferrals=deferrals, waited=0).how == how


def test_a_refused_run_leaves_the_slot_that_its_publisher_has_asked_for(setting: Setting) -> None:
    """And no place is kept for it any more, if the publisher was slower than the worker."""
    setting.declare(at_most_one="waiting_or_running", on_conflict="raise")
    setting.hold()
    setting.deliver(slot=KEY)

    assert setting.store.queue(KEY, setting.run, ttl_ms=60_000, running_too=False) is not None


@pytest.mark.parametrize("deferrals", [1, 5])
def test_a_run_that_gives_up_leaves_its_place(setting: Setting, deferrals: int) -> None:
    """The next change of what is coalesced would be taken for a duplicate of it, and lost."""
    setting.declare(on_conflict="coalesce", give_up_after=60)
    setting.hold()
    setting.store.queue(KEY, setting.run, ttl_ms=60_000, running_too=False)

    assert setting.deliver(**{**LONG_AGO, "deferrals": deferrals}).how == "skipped"
    assert setting.store.record(KEY).slot == ""


def test_a_duplicate_joins_the_run_that_goes_next(setting: Setting) -> None:
    """Who has reserved a key is met like one that runs, and not the run before, which has ended."""
    setting.declare(on_conflict="join")
    setting.hold()
    setting.hold("next", wait_ms=60_000, waits=Waits.FIRST)
    setting.end()

    assert setting.deliver().carried.joins == "next"


@pytest.mark.parametrize(("result", "how"), [(42, "answered"), (ValueError("broken"), "failed")])
def test_a_run_that_joins_ends_as_the_one_that_it_has_met(setting: Setting, result: object, how: str) -> None:
    """Without asking for the key."""
    setting.declare(on_conflict="join")
    setting.hold()
    setting.end()
    setting.case.know(setting.other, result)
    fate = setting.deliver(**OFTEN, joins=setting.other)

    assert fate.how == how
    assert fate.value == 42 or "broken" in fate.value
    assert setting.store.record(KEY).run_id == setting.other


def test_a_run_that_was_granted_the_key_looks_again_whether_there_is_a_result_now(setting: Setting) -> None:
    """The other one may have ended between the first look and the grant."""
    setting.declare(on_conflict="join")
    setting.hold()
    setting.end()

    def before(operation: str) -> None:
        if operation == "claim":
            setting.case.know(setting.other, 42)

    setting.store.before = before
    fate = setting.deliver(**OFTEN, joins=setting.other)

    assert (fate.how, fate.value) == ("answered", 42)
    assert not setting.store.record(KEY).held


def test_a_run_that_was_granted_the_key_of_a_run_between_two_attempts_gives_it_back(setting: Setting) -> None:
    """That attempt may have failed between the first look and the grant: its retry has the result."""
    setting.declare(on_conflict="join")
    setting.hold()

    def before(operation: str) -> None:
        if operation == "claim":
            setting.store.before = lambda _: None
            setting.end(Outcome.RETRYING)

    setting.store.before = before
    fate = setting.deliver(**OFTEN, joins=setting.other)

    assert (fate.how, setting.case.bodies) == ("deferred", 0)
    assert not setting.store.record(KEY).held


def test_a_message_takes_no_result_of_a_run_that_has_never_had_its_key(setting: Setting) -> None:
    """Who may write a message could read any result."""
    setting.declare(on_conflict="join")
    setting.case.know("secret", 42)

    assert setting.deliver(**OFTEN, joins="secret").how == "ran"


@pytest.mark.parametrize(
    ("carried", "how", "told"),
    [(OFTEN, "deferred", Kind.DEFERRED), (LONG_AGO, "skipped", Kind.GAVE_UP)],
)
def test_a_run_that_joins_waits_for_a_retry_but_not_for_longer_than_it_may(
    setting: Setting, carried: dict[str, Any], how: str, told: Kind
) -> None:
    """Between two attempts the key is free; who waits is told of all the same, and gives up in time."""
    setting.declare(on_conflict="join", give_up_after=60)
    setting.hold()
    setting.end(Outcome.RETRYING)
    fate = setting.deliver(**carried, joins=setting.other)

    assert (fate.how, setting.case.told()) == (how, [told])


def test_a_run_that_joins_runs_itself_where_results_cannot_be_read(setting: Setting) -> None:
    """No answer is no result; it is neither failed nor tried again."""
    setting.declare(on_conflict="join")
    setting.hold()
    setting.end()
    setting.case.know(setting.other, 42)
    setting.case.lose_results()

    assert setting.deliver(**OFTEN, joins=setting.other).how == "ran"


def test_in_observation_nobody_joins(setting: Setting) -> None:
    """Everything runs, also what was deferred before somebody switched to that."""
    setting.declare(on_conflict="join", observing=True)
    setting.hold()
    setting.end(Outcome.RETRYING)

    assert setting.deliver(**OFTEN, joins=setting.other).how == "ran"


@pytest.mark.parametrize(
    ("on_store_error", "how", "told"),
    [
        ("raise", "unavailable", []),
        ("skip", "skipped", []),
        ("defer", "deferred", []),
        ("run", "ran", [Kind.UNGUARDED]),
    ],
)
@pytest.mark.parametrize("joins", [False, True])
def test_a_store_that_is_away_is_never_taken_for_a_conflict(
    setting: Setting, on_store_error: str, how: str, told: list[Kind], joins: bool
) -> None:
    """Nor does anybody go on waiting for a run that the store cannot tell of; the outage is told once."""
    setting.declare(on_store_error=on_store_error, on_conflict="join")
    setting.hold()
    setting.end(Outcome.RETRYING)
    setting.case.know(setting.other, 42)
    setting.store.cut()
    fate = setting.deliver(**({"joins": setting.other, **OFTEN} if joins else {}))

    assert (fate.how, setting.case.told()) == (how, [Kind.STORE_ERROR, *told])


def test_a_lease_that_is_granted_is_used_although_the_store_is_away_after_that(setting: Setting) -> None:
    """The second look for a result is a courtesy."""
    setting.declare(on_conflict="join", on_store_error="raise")
    setting.hold()
    setting.end()

    def before(operation: str) -> None:
        if operation == "claim":
            setting.case.know(setting.other, 42)
            setting.store.before = then

    def then(operation: str) -> None:
        if operation == "peek":
            raise StoreUnavailable("gone")

    setting.store.before = before

    assert setting.deliver(**OFTEN, joins=setting.other).how == "ran"


def test_the_toy_is_a_framework(core: Core) -> None:
    """Two threads, one key: a body that is under way is met, and its duplicate comes back when it is over."""
    toy, met, go_on = Toy(core.leases), threading.Event(), threading.Event()
    runs: list[str] = []

    @toy.task(on_conflict="defer")
    def work(name: str) -> str:
        runs.append(name)
        met.set()
        assert go_on.wait(10)
        return name

    threads = [threading.Thread(target=toy.work) for _ in range(2)]
    for thread in threads:
        thread.start()
    first = toy.send("work", "first")
    assert met.wait(10)
    second = toy.send("work", "second")
    while [event.kind for event in core.events][-1:] != [Kind.DEFERRED]:
        time.sleep(0.01)
    assert runs == ["first"]
    go_on.set()
    while second not in toy.results:
        time.sleep(0.01)
    for _ in threads:
        toy.queue.put(None)
    for thread in threads:
        thread.join()

    assert toy.results == {first: Returned("first"), second: Returned("second")}


def test_the_page_on_other_frameworks_shows_the_toy_that_is_tested() -> None:
    """Line by line."""
    root = Path(__file__).parents[2]
    page = (root / "docs/another-framework.md").read_text("utf-8")
    (shown,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    assert shown == (root / "tests/support/toy_framework.py").read_text("utf-8")
