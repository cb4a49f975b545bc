"""Every place of a duplicate in a flow, for every way to treat it: who waits for the flow gets an end.

All flows are published at once and awaited together. The runs that are in the way are leases that the test
itself holds, so that they take no worker; once every duplicate has been decided, they are given back.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery import chain, chord, group
from celery.result import AsyncResult, GroupResult

from singleflight.events import short_key
from singleflight.lease import Lease
from singleflight.leases.claiming import Request, new_token
from singleflight.tasks.delivery import Delivery
from tests.integration import canvas_app
from tests.integration.canvas_app import MODES
from tests.support.rig import Rig
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Signature

GOES_ON = ("skip_result", "defer", "coalesce", "join")
WAITS = ("defer", "coalesce", "join")
INCLUDE = ["-I", canvas_app.__name__]
SECONDS = 30
"""No flow may take longer from the moment in which it can be decided."""


@dataclass
class Flow:
    """One flow with duplicates in it, and what came of it."""

    rig: Rig
    mode: str
    shape: str
    duplicates: list[str] = field(default_factory=list)
    """The keys of its duplicates."""
    results: list[AsyncResult] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What its keys begin with."""
        return f"{self.mode}-{self.shape}"

    def dup(self, which: str = "", *, held: bool = True) -> Signature:
        """Return a duplicate: a call whose key another run holds."""
        key = f"{self.name}-dup{which}"
        if held and key not in self.duplicates:
            HELD[key] = hold(self.rig, self.mode, key)
        self.duplicates.append(key)
        gate = "" if held else str(self.rig.folder / "gate")
        return self.rig.app.tasks[f"canvas.{self.mode}"].si(key, gate=gate)

    def step(self, name: str = "step") -> Signature:
        """Return an ordinary step."""
        return self.rig.app.tasks["canvas.step"].si(f"{self.name}-{name}")

    def body(self) -> Signature:
        """Return a chord's body, with an errback."""
        body = self.rig.app.tasks["canvas.collect"].s(f"{self.name}-body")
        body.link_error(self.step("errback"))
        return body

    def start(self) -> None:
        """Publish the flow."""
        SHAPES[self.shape](self)

    def watch(self, result: Any) -> None:
        """Note the results that its user may wait for, from the head on."""
        if isinstance(result, GroupResult):
            for child in result.results:
                self.watch(child)
            return
        if result.parent is not None:
            self.watch(result.parent)
        self.results.append(result)

    @property
    def ready(self) -> bool:
        """Whether nobody who waits for it waits any longer."""
        return all(result.ready() for result in self.results)

    @property
    def states(self) -> list[str]:
        """The states of its results."""
        return [result.state for result in self.results]

    def runs(self, name: str) -> int:
        """How often a step of it has run."""
        return len(self.rig.runs(f"{self.name}-{name}"))


Table = dict[tuple[str, str], Flow]

HELD: dict[str, Lease] = {}


def hold(rig: Rig, mode: str, key: str) -> Lease:
    """Be the run that is in the way of a key."""
    lease = rig.app.singleflight.leases.claim(asked(rig, mode, key), anyway=True)
    assert isinstance(lease, Lease)
    return lease


def asked(rig: Rig, mode: str, key: str) -> Request:
    """Return what a run of a duplicate's task asks the store for."""
    task, runtime = rig.app.tasks[f"canvas.{mode}"], rig.app.singleflight
    delivery = Delivery(run_id=new_token(), attempt=0, token=new_token(), args=(key,), kwargs={})
    request: Request = runtime.request(task, runtime.policy(task), delivery)
    return request


def alone(flow: Flow) -> None:
    """Publish a duplicate by itself."""
    flow.watch(flow.dup().apply_async())


def head(flow: Flow) -> None:
    """Publish a chain that begins with it."""
    flow.watch(chain(flow.dup(), flow.step(), flow.step()).apply_async())


def middle(flow: Flow) -> None:
    """Publish a chain that has it in the middle."""
    flow.watch(chain(flow.step(), flow.dup(), flow.step()).apply_async())


def tail(flow: Flow) -> None:
    """Publish a chain that ends with it."""
    flow.watch(chain(flow.step(), flow.step(), flow.dup()).apply_async())


def member(flow: Flow) -> None:
    """Publish a group with it."""
    flow.watch(group(flow.step(), flow.dup(), flow.step()).apply_async())


def nested(flow: Flow) -> None:
    """Publish a group with it in an inner group."""
    flow.watch(group(group(flow.step(), flow.dup()), flow.step()).apply_async())


def header_one(flow: Flow) -> None:
    """Publish a chord with one of them in its header."""
    flow.watch(chord([flow.step(), flow.dup(), flow.step()], flow.body()).apply_async())


def header_several(flow: Flow) -> None:
    """Publish a chord with two of them in its header."""
    flow.watch(chord([flow.dup("1"), flow.step(), flow.dup("2")], flow.body()).apply_async())


def header_all(flow: Flow) -> None:
    """Publish a chord with nothing else in its header."""
    flow.watch(chord([flow.dup("1"), flow.dup("2")], flow.body()).apply_async())


def header_twice(flow: Flow) -> None:
    """Publish a chord with the same duplicate twice in its header."""
    flow.watch(chord([flow.dup(), flow.dup()], flow.body()).apply_async())


def header_equal(flow: Flow) -> None:
    """Publish a chord with two equal members, one of which can run."""
    flow.watch(chord([flow.dup(held=False), flow.dup(held=False)], flow.body()).apply_async())


def header_chain(flow: Flow) -> None:
    """Publish a chord over a chain that has it in the middle."""
    over = chain(flow.step(), flow.dup(), flow.step())
    flow.watch(chord([over, flow.step()], flow.body()).apply_async())


def header_chain_head(flow: Flow) -> None:
    """Publish a chord over a chain that begins with it."""
    flow.watch(chord([chain(flow.dup(), flow.step()), flow.step()], flow.body()).apply_async())


def header_nested(flow: Flow) -> None:
    """Publish a chord with it in a group in its header."""
    inner = group(flow.step(), flow.dup())
    flow.watch(chord([inner, flow.step()], flow.body()).apply_async())


def body(flow: Flow) -> None:
    """Publish a chord that has it as its body."""
    flow.watch(chord([flow.step(), flow.step()], flow.dup()).apply_async())


def chord_then(flow: Flow) -> None:
    """Publish a chord with it whose body is a chain."""
    body = chain(flow.rig.app.tasks["canvas.collect"].s(f"{flow.name}-body"), flow.step("after"))
    body.link_error(flow.step("errback"))
    flow.watch(chord([flow.step(), flow.dup()], body).apply_async())


def link(flow: Flow) -> None:
    """Publish it with a callback."""
    flow.watch(flow.dup().apply_async(link=flow.step("linked"), link_error=flow.step("errback")))


def stamped(flow: Flow) -> None:
    """Publish a stamped group with it."""
    flows = group(flow.step(), flow.dup())
    flows.stamp(mark=flow.name)
    flow.watch(flows.apply_async())


def mapped(flow: Flow) -> None:
    """Publish it as the task of a map, of a starmap and of chunks, which call the task directly."""
    key = flow.dup().args[0]
    task = flow.rig.app.tasks[f"canvas.{flow.mode}"]
    flow.watch(task.map([key]).apply_async())
    flow.watch(task.starmap([(key,)]).apply_async())
    flow.watch(task.chunks([(key,), (key,)], 1).apply_async())


SHAPES: dict[str, Callable[[Flow], None]] = {
    shape.__name__: shape
    for shape in (
        alone, head, middle, tail, member, nested, header_one, header_several, header_all, header_twice,
        header_equal, header_chain, header_chain_head, header_nested, body, chord_then, link, stamped, mapped,
    )
}  # fmt: skip

STOPPED: dict[str, list[str]] = {
    "alone": ["stop"],
    "head": ["stop", "stop", "stop"],
    "middle": ["SUCCESS", "stop", "stop"],
    "tail": ["SUCCESS", "SUCCESS", "stop"],
    "member": ["SUCCESS", "stop", "SUCCESS"],
    "nested": ["SUCCESS", "stop", "SUCCESS"],
    "header_one": ["SUCCESS", "stop", "SUCCESS", "FAILURE"],
    "header_several": ["stop", "SUCCESS", "stop", "FAILURE"],
    "header_all": ["stop", "stop", "FAILURE"],
    "header_twice": ["stop", "stop", "FAILURE"],
    "header_equal": ["SUCCESS", "stop", "FAILURE"],
    "header_chain": ["SUCCESS", "stop", "stop", "SUCCESS", "FAILURE"],
    "header_chain_head": ["stop", "stop", "SUCCESS", "FAILURE"],
    "header_nested": ["SUCCESS", "stop", "SUCCESS", "FAILURE"],
    "body": ["SUCCESS", "SUCCESS", "stop"],
    "chord_then": ["SUCCESS", "stop", "FAILURE"],
    "link": ["stop"],
    "stamped": ["SUCCESS", "stop"],
}
"""The states of a flow whose duplicate ends it, head to tail; `stop` is REVOKED, or FAILURE for `raise`."""

JOINED = {"header_several": 2, "header_all": 2, "header_twice": 2}
"""How many results of a flow are taken over from the run in the way, if not one."""

UNORDERED = ("header_equal", "header_twice", "header_nested", "nested")
"""Which of two equal ones waits is chance, and Celery orders inner groups as it likes."""

CELLS = [
    (shape, mode)
    for shape in STOPPED
    for mode in MODES
    # Before 5.6, Celery itself leaves the rest of a chord's body pending if the header fails, of whatever.
    if shape != "chord_then" or mode in GOES_ON or celery.VERSION >= (5, 6)
]

PROCESSES = len(MODES) + 2
"""In each mode one body of equal members runs until the gate is open: more than such bodies, or nothing else
would go on should one worker get them all."""

RUNS_BODY = [shape for shape in STOPPED if shape.startswith(("header", "chord"))]


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """Let every flow go to its end, with results in Redis."""
    with Rig(tmp_path_factory.mktemp("canvas")) as rig:
        rig.start(2, concurrency=PROCESSES, args=INCLUDE)
        yield ended(rig, [*CELLS, *(("mapped", mode) for mode in MODES)])
        assert not rig.endless_keys()


@pytest.fixture(scope="module")
def flows_in_sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """Let every flow go to its end, with results in SQL, where a task polls for the end of a header."""
    folder = tmp_path_factory.mktemp("canvas-sql")
    backend = f"db+sqlite:///{folder}/results.db"
    with Rig(folder, conf={"result_backend": backend}) as rig:
        # SQLite has one writer at a time; a second worker would only wait for the first.
        rig.start(1, concurrency=PROCESSES, args=INCLUDE, env={"CELERY_RESULT_BACKEND": backend})
        yield ended(rig, CELLS)
        assert not rig.endless_keys()


def ended(rig: Rig, cells: list[tuple[str, str]]) -> Table:
    """Publish flows, give the duplicates' leases back once all are decided, and await every end."""
    table = {(shape, mode): Flow(rig, mode, shape) for shape, mode in cells}
    for flow in table.values():
        flow.start()
    waiting = [flow for flow in table.values() if flow.mode in WAITS and flow.shape != "mapped"]
    until(lambda: not undecided(rig, waiting), 2 * SECONDS, "each duplicate's deferral", every=0.2)
    await_ready([flow for flow in table.values() if flow not in waiting and flow.shape != "header_equal"])
    (rig.folder / "gate").touch()
    for lease in HELD.values():
        rig.app.backend.store_result(lease.run_id, "joined", "SUCCESS")
        lease.release()
    HELD.clear()
    await_ready(table.values())
    return table


def await_ready(flows: Any) -> None:
    """Wait until each flow has ended, or its time is over: its own test will tell."""
    try:
        until(lambda: all(flow.ready for flow in flows), SECONDS, "all flows", every=0.2)
    except AssertionError:
        return


def undecided(rig: Rig, flows: list[Flow]) -> list[str]:
    """Return the keys of which a duplicate has not been deferred yet, by the workers' logs."""
    text = "".join(worker.logs() for worker in rig.workers)
    runs: dict[str, set[str]] = {}
    for run, key in re.findall(r"run (\S+) deferred, key (\S+),", text):
        runs.setdefault(key, set()).add(run)
    return [
        key
        for flow in flows
        for key, count in Counter(flow.duplicates).items()
        # A key has one waiting slot; of two equal ones that can run, one does.
        if len(runs.get(short_key(asked(rig, flow.mode, key).key), ()))
        < (1 if flow.mode == "coalesce" else count - (flow.shape == "header_equal"))
    ]


@pytest.mark.smoke
@pytest.mark.parametrize(("shape", "mode"), CELLS)
def test_a_flow_with_a_duplicate_ends(flows: Table, shape: str, mode: str) -> None:
    """Nothing waits for ever; a chord's body runs once or, if it cannot, its errback does."""
    judge(flows[shape, mode], shape, mode)


@pytest.mark.parametrize(("shape", "mode"), CELLS)
def test_a_flow_with_a_duplicate_ends_where_results_are_in_sql(
    flows_in_sql: Table, shape: str, mode: str
) -> None:
    """It ends as with results in Redis."""
    judge(flows_in_sql[shape, mode], shape, mode)


def judge(flow: Flow, shape: str, mode: str) -> None:
    """Compare a flow's end with what its shape and mode say."""
    stop = "FAILURE" if mode == "raise" else "REVOKED"
    goes_on = mode in GOES_ON and not (mode == "coalesce" and shape == "header_twice")
    states = ["SUCCESS" if goes_on or state == "SUCCESS" else state for state in STOPPED[shape]]
    expected = [stop if state == "stop" else state for state in states]
    if mode == "coalesce" and shape == "header_twice":
        expected = ["SUCCESS", "REVOKED", "FAILURE"]

    assert Counter(flow.states) == Counter(expected)
    if shape not in UNORDERED:
        assert flow.states == expected
    if shape in RUNS_BODY:
        assert (flow.runs("body"), flow.runs("errback")) == ((1, 0) if goes_on else (0, 1))
    if shape == "link":
        assert (flow.runs("linked"), flow.runs("errback")) == (int(goes_on), int(mode == "raise"))
    if shape != "header_equal":
        ran = sum(len(flow.rig.runs(key)) for key in set(flow.duplicates))
        waits = len(set(flow.duplicates)) if mode == "coalesce" else len(flow.duplicates)
        assert ran == (waits if mode in ("defer", "coalesce") else 0)
    if mode == "join" and shape != "header_equal":
        assert [r.result for r in flow.results].count("joined") == JOINED.get(shape, 1)


@pytest.mark.smoke
@pytest.mark.parametrize("mode", MODES)
def test_map_starmap_and_chunks_take_no_lease(flows: Table, mode: str) -> None:
    """They call the task directly, so all calls run, whoever holds the key."""
    flow = flows["mapped", mode]

    assert set(flow.states) == {"SUCCESS"}
    assert len(flow.rig.runs(flow.duplicates[0])) == 4
