"""What a message says of its run: whose it is, what of it counts, and that nothing in it can raise."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import dramatiq
import pytest
from celery import Celery
from dramatiq.broker import MessageProxy
from dramatiq.brokers.stub import StubBroker
from hypothesis import given
from hypothesis import strategies as st

from singleflight import ConfigurationError, Singleton
from singleflight.celery import install
from singleflight.celery.delivery import read as read_request
from singleflight.dramatiq import install as install_dramatiq
from singleflight.dramatiq.delivery import read as read_message
from singleflight.policy import LONGEST_CALL
from singleflight.stores.base import INFINITE
from singleflight.tasks.message import HIGHEST, MAX_RUN, MOST_DEFERRALS, Carried, id_of

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOSE = ["run", "task"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
FIELDS = st.sampled_from(
    ["for", "options", "deferrals", "since", "must_run", "slot", "joins", "call_no", "order", "more"]
)
OPTIONS = st.dictionaries(
    st.sampled_from(["by", "window", "ttl", "name", "on_conflict", "max_hold", "x"]), JSON
)


@pytest.fixture
def app() -> Iterator[Celery]:
    """Return an app without a broker."""
    app = Celery("messages", broker="memory://", set_as_current=False)
    install(app, "memory://")
    yield app
    app.close()


def work(key: int = 0, more: int = 0) -> None:
    """Have parameters."""


@given(st.dictionaries(FIELDS, JSON | OPTIONS) | JSON)
def test_no_header_raises_and_what_counts_has_its_type_and_bounds(header: Any) -> None:
    """The worker's main process reads this too, and must survive whatever stands there."""
    if isinstance(header, dict) and "for" not in header:
        header["for"] = WHOSE
    read = Carried.read(header, *WHOSE)

    assert read.options is None or read.options is False or isinstance(read.options, Singleton)
    assert 0 <= read.deferrals <= MOST_DEFERRALS
    assert read.since is None or 0 < read.since < math.inf
    assert isinstance(read.must_run, bool)
    assert all(text is None or (text and text.isprintable()) for text in (read.slot, read.joins))
    assert read.waited >= 0
    assert all(0 <= number < HIGHEST for number in (read.call_no, read.order))
    json.dumps(read.write(*WHOSE))


@given(st.dictionaries(st.sampled_from(["id", "retries", "replaced_task_nesting", "args", "kwargs"]), JSON))
def test_no_request_raises_and_what_is_asked_for_is_bounded(request: dict[str, Any]) -> None:
    """A run has an id that every store keeps, and an attempt between 0 and the one of its end."""
    read = read_request(request, "task")

    assert 0 < len(read.run_id) <= MAX_RUN
    assert read.run_id.isprintable()
    assert 0 <= read.attempt < INFINITE
    assert isinstance(read.args, tuple)


@given(st.dictionaries(st.sampled_from(["retries", "singleflight", "singleflight_occurrence"]), JSON), JSON)
def test_no_options_of_a_dramatiq_message_raise(options: dict[str, Any], message_id: Any) -> None:
    """What a message of Dramatiq says is as foreign as one of Celery."""
    actor = dramatiq.actor(broker=StubBroker(middleware=[]), actor_name="task")(work)
    message = MessageProxy(actor.message().copy(message_id=message_id, options=options))
    read = read_message(message, actor)

    assert 0 < len(read.run_id) <= MAX_RUN
    assert 0 <= read.attempt < INFINITE


@pytest.mark.parametrize(
    "whose", [None, [], ["other", "task"], ["run", "other"], "run", ["run", "task", "x"]]
)
def test_what_is_not_for_this_run_of_this_task_counts_nowhere(whose: Any) -> None:
    """Headers are forwarded to other messages, for the sake of traces, and ours must not travel along."""
    header = {
        **Carried(options=False, deferrals=9, must_run=True, slot="k", joins="j").write(*WHOSE),
        "for": whose,
    }

    assert Carried.read(header, *WHOSE) == Carried()


def test_what_is_written_for_a_run_is_read_by_it() -> None:
    """Nothing is lost on the way through JSON."""
    carried = Carried(Singleton(ttl=9, by=("a",)), 3, 1.5e9, True, "key", "other", call_no=5, order=6)

    assert Carried.read(json.loads(json.dumps(carried.write(*WHOSE))), *WHOSE) == carried
    assert carried.write("run~0123456789abcdef", "task") == carried.write(*WHOSE)


def test_an_option_that_does_not_fit_is_left_out_and_the_others_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A newer publisher knows more options; a garbled one is told once, and not with each message."""
    options = {"ttl": 9, "window": -1, "newer": 1, "name": "theirs"}
    for _ in range(2):
        read = Carried.read({"for": ["r", "told"], "options": options}, "r", "told")

        assert read.options == Singleton(ttl=9)
    assert sorted(record.getMessage().split("option is left out: ")[1][:6] for record in caplog.records) == [
        "name='",
        "single",
        "window",
    ]


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "x" * (MAX_RUN + 1),
        "a\nb",
        "\x1b[2J",
        "\x00",
        "\ud800",
        7,
        None,
        ["id"],
        "victim~0123456789abcdef",
    ],
)
def test_an_id_that_no_store_should_keep_stands_as_a_digest(raw: object) -> None:
    """The same one each time, another one for another id, and of ordinary text and length."""
    assert id_of(raw) == id_of(raw)
    assert id_of(raw).startswith("sha256:")
    assert id_of(raw) != id_of("other" * 100)


@pytest.mark.parametrize("option", [{"name": "theirs"}, {"window": LONGEST_CALL + 1}, {"ttl": 1e8}])
def test_a_call_cannot_choose_another_lease_nor_close_its_own_for_long(
    app: Celery, option: dict[str, Any]
) -> None:
    """Refused to the caller by name; a worker that is sent it all the same does as the task declares."""
    app.task(shared=False, name="bounded", singleton=True)(work)
    task, broker = app.tasks["bounded"], StubBroker(middleware=[])
    install_dramatiq(broker, "memory://")
    actor = dramatiq.actor(broker=broker, actor_name="bounded", singleton=True)(work)

    with pytest.raises(ConfigurationError, match=f"{next(iter(option))}=.*single call"):
        task.apply_async(singleton=Singleton(**option))
    with pytest.raises(ConfigurationError, match=f"{next(iter(option))}=.*single call"):
        actor.send_with_options(singleton=Singleton(**option))

    header = {"for": ["run", "bounded"], "options": option}
    delivery = read_request({"id": "run", "singleflight": header}, "bounded")
    assert app.singleflight.policy(task, delivery) == app.singleflight.policy(task)


def test_a_call_may_ask_for_as_long_as_its_task_declares(app: Celery) -> None:
    """What the task's owner has written is no misuse."""
    app.task(shared=False, name="long", singleton=Singleton(window=90 * LONGEST_CALL))(work)

    policy = app.singleflight.policy_of(app.tasks["long"], Singleton(window=80 * LONGEST_CALL))
    assert policy.window == 80 * LONGEST_CALL


@pytest.mark.parametrize(
    "options", [{"by": "nobody"}, {"on_conflict": "join"}, {"at_most_one": "waiting_or_running"}]
)
def test_options_that_a_declaration_would_refuse_are_left_out_of_a_message(
    app: Celery, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A run is not failed, nor let past its lease, by what somebody has written into its message."""
    declared = Singleton(by="key", on_conflict="defer") if "at_most_one" in options else Singleton()
    name = f"left.{next(iter(options))}"
    app.task(shared=False, name=name, singleton=declared)(work)
    header = {"for": ["run", name], "options": options}
    task, delivery = app.tasks[name], read_request({"id": "run", "singleflight": header}, name)

    assert app.singleflight.policy(task, delivery) == app.singleflight.policy(task)
    assert "its options are left out" in caplog.text
