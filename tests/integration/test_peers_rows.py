"""Every row on which another library for this job fails, and the test of ours that proves we do not.

The rows are those of `docs/comparison.md`, which `tests/unit/test_comparison.py` compares with these. Most
are proved where they belong; the tests here are the rest, each with its row in its docstring.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from singleflight import Singleton, Skipped
from tests.integration.worker_app import TTL
from tests.support.rig import Rig
from tests.support.waiting import SOON, until

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVED = {
    "a duplicate is seen when it is published": (
        "tests/integration/test_publish.py::test_a_duplicate_of_a_waiting_run_is_not_sent"
    ),
    "a duplicate is seen when it arrives": (
        "tests/integration/test_worker_modes.py"
        "::test_of_two_hundred_publishes_none_overlap_and_all_others_are_skipped"
    ),
    "sent by name, or from another language": (
        "tests/scenarios/test_celery_publish.py"
        "::test_scenario_85_producers_that_only_know_the_name_start_one_run"
    ),
    "a claim is one command, without polling": (
        "tests/stores/test_redis.py::test_each_operation_is_one_command"
    ),
    "extra wait before a task starts": (
        "tests/integration/test_worker_store.py::test_an_uncontended_run_costs_two_requests"
    ),
    "requests to the store for one run": (
        "tests/integration/test_worker_store.py::test_an_uncontended_run_costs_two_requests"
    ),
    "a publisher is never blocked for long": (
        "tests/scenarios/test_celery_publish.py::test_scenario_100_a_thousand_publishes_are_one_message"
    ),
    "each delivery has its own token": (
        "singleflight/testing/contract_claim.py::test_another_delivery_of_the_same_run_is_refused"
    ),
    "a release compares the owner, atomically": (
        "singleflight/testing/contract_keep.py::test_a_stale_holder_cannot_free_anothers_lease"
    ),
    "no key lives for ever": "singleflight/testing/contract_keep.py::test_no_record_lives_for_ever",
    "a fence for the database": (
        "singleflight/testing/contract_claim.py::test_the_fence_grows_with_every_grant"
    ),
    "pool process killed (`kill -9`, out of memory)": (
        "tests/integration/test_worker_crashes.py"
        "::test_after_a_killed_child_the_next_run_starts_within_the_ttl"
    ),
    "hard time limit": (
        "tests/integration/test_worker_crashes.py::test_a_hard_time_limit_frees_the_key_at_once"
    ),
    "revoked while it waits": (
        "tests/scenarios/test_celery_worker.py::test_scenario_71_a_run_revoked_while_it_waits_blocks_nobody"
    ),
    "revoked while it runs": (
        "tests/integration/test_worker_crashes.py::test_a_terminated_run_frees_the_key"
    ),
    "`expires` has passed": "tests/integration/test_publish.py::test_an_expired_run_waits_no_longer",
    "`self.retry()`": (
        "tests/scenarios/test_celery_worker.py::test_scenario_74_retries_go_through_among_other_publishes"
    ),
    "delivered again while the first copy runs": (
        "tests/scenarios/test_celery_worker.py"
        "::test_scenario_67_copies_after_the_visibility_timeout_never_start"
    ),
    "delivered again after a crash": (
        "tests/integration/test_worker_crashes.py::test_a_run_whose_child_was_killed_comes_back_and_finishes"
    ),
    "a duplicate heads a chain": (
        "tests/scenarios/test_canvas.py::test_scenario_101_two_chains_that_begin_with_the_same_task"
    ),
    "a duplicate in a chord's header": (
        "tests/integration/test_canvas.py::test_a_flow_with_a_duplicate_ends"
    ),
    "the same call twice in one chord or group": (
        "tests/integration/test_canvas.py::test_a_flow_with_a_duplicate_ends"
    ),
    "a duplicate's caller gets": (
        "tests/scenarios/test_celery_publish.py::test_scenario_89_a_skipped_publish_returns_a_handle"
    ),
    "errors can be pickled": (
        "tests/unit/test_errors.py::test_every_error_survives_pickling_and_being_rebuilt_from_its_arguments"
    ),
    "broker away when publishing": (
        "tests/scenarios/test_celery_publish.py::test_scenario_86_a_failed_publish_gives_its_place_back"
    ),
    "store away when publishing": (
        "tests/scenarios/test_celery_publish.py::test_scenario_98_a_store_that_is_down_is_no_duplicate"
    ),
    "store away: run, skip, wait or raise is your choice": (
        "tests/integration/test_worker_store.py::test_every_policy_holds_while_the_store_is_away"
    ),
    "eager tests need no server": (
        "tests/unit/test_celery_eager.py::test_scenario_82_eager_runs_need_no_store"
    ),
    "a direct call `task(1)` takes no lock": (
        "tests/scenarios/test_celery_worker.py::test_scenario_81_direct_calls_take_no_lease"
    ),
    "`f(1)` and `f(x=1)` are one key": (
        "tests/scenarios/test_celery_worker.py::test_scenario_01_positional_and_keyword_calls_are_one_key"
    ),
    "a key of some arguments, or of a function": (
        "tests/unit/test_keys.py::test_a_callable_gets_every_argument_by_keyword_with_defaults"
    ),
    "UUID, datetime, Decimal as arguments": (
        "tests/scenarios/test_keys.py::test_scenario_05_values_that_serializers_accept_have_keys"
    ),
    "keys are short, readable, and the same in every process": (
        "tests/unit/test_keys.py::test_every_key_is_short_printable_and_ends_in_a_hash_tag"
    ),
    "duplicates that run later, all or one of them": (
        "tests/integration/test_worker_modes.py::test_ten_clicks_that_coalesce_run_exactly_twice"
    ),
    "Redis Sentinel": "tests/stores/test_redis_topology.py::test_celerys_broker_by_sentinels_is_the_store",
    "Redis Cluster": (
        "tests/stores/test_redis_topology.py::test_scenario_43_names_with_braces_work_on_a_cluster"
    ),
    "TLS to the store": "tests/stores/test_redis_topology.py::test_celerys_broker_by_tls_is_the_store",
    "a store other than Redis": (
        "tests/stores/test_sql_dynamodb_celery.py::test_duplicates_are_skipped_on_two_workers"
    ),
    "`async` code": "tests/stores/test_aio.py::test_a_lease_is_had_used_and_given_back",
    "see what is held, and break it": (
        "tests/scenarios/test_ops.py::test_scenario_167_a_stuck_lease_is_seen_and_freed"
    ),
    "metrics": "tests/integration/test_cli_celery.py::test_counters_of_prefork_workers_agree_with_what_ran",
    "typed": "tests/test_packaging.py::test_the_wheel_has_every_file_of_the_package",
}
"""Row -> the test elsewhere that proves it."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run one worker of four processes for all rows of this file."""
    with Rig(tmp_path_factory.mktemp("rows")) as rig:
        yield rig.start(1, concurrency=4)
        assert not rig.endless_keys()


def test_a_run_that_outlived_its_lease_does_not_free_the_next_ones(rig: Rig) -> None:
    """Row: a run that overran frees nobody else's lock.

    A process is stopped until its lease has lapsed and another run holds the key; when it goes on and ends,
    a third run is still a duplicate of the second.
    """
    gates = [rig.folder / f"overrun-{n}" for n in (1, 2)]
    first = rig.send("probe", "overrun", gate=str(gates[0]))
    (stopped,) = rig.wait_start("overrun")
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        until(lambda: not rig.held(first.id), SOON, "the end of the first lease")
        second = rig.send("probe", "overrun", {"singleton": Singleton(ttl=30)}, gate=str(gates[1]))
        rig.wait_start("overrun", 2)
    finally:
        gates[0].touch()
        os.kill(stopped.pid, signal.SIGCONT)
    assert first.get(timeout=30) == first.id
    third = rig.send("probe", "overrun")
    with pytest.raises(Skipped, match=second.id):
        third.get(timeout=30)
    gates[1].touch()

    assert second.get(timeout=30) == second.id
    assert [run.run for run in rig.runs("overrun")] == [first.id, second.id]


def test_the_ttl_counts_from_the_start_and_not_from_publishing(rig: Rig) -> None:
    """Row: time in the queue does not use up the lock.

    A run that waits longer than its ttl before it starts is as alone as any other.
    """
    gate = rig.folder / "queue-wait"
    first = rig.send("probe", "queue-wait", {"countdown": 1.5 * TTL}, gate=str(gate))
    rig.wait_start("queue-wait")
    second = rig.send("probe", "queue-wait")
    with pytest.raises(Skipped, match=first.id):
        second.get(timeout=30)
    gate.touch()

    assert first.get(timeout=30) == first.id
    assert len(rig.runs("queue-wait")) == 1


def test_a_run_may_take_longer_than_its_ttl(rig: Rig) -> None:
    """Row: the lock is renewed while the task runs.

    After two ttls of work the key is still held, and a duplicate is still skipped.
    """
    gate = rig.folder / "renewed"
    first = rig.send("probe", "renewed", gate=str(gate))
    rig.wait_start("renewed")
    ends = rig.record_of(first.id).expires_ms
    until(lambda: rig.record_of(first.id).expires_ms > ends + 2 * TTL * 1000, 60, "renewals of two ttls")
    assert rig.held(first.id)
    second = rig.send("probe", "renewed")
    with pytest.raises(Skipped):
        second.get(timeout=30)
    gate.touch()

    assert first.get(timeout=30) == first.id
    assert len(rig.runs("renewed")) == 1


def test_a_window_outlives_the_run_and_a_lease_does_not(rig: Rig) -> None:
    """Row: until the end, within a window, or only while running.

    The next run of a task without window starts at once; with one, it is skipped after the first has ended.
    """
    for _ in range(2):
        alone = rig.send("probe", "no-window")
        assert alone.get(timeout=30) == alone.id
    options = {"singleton": Singleton(window=60)}
    first = rig.send("probe", "window", options)
    assert first.get(timeout=30) == first.id
    second = rig.send("probe", "window", options)

    with pytest.raises(Skipped, match="window"):
        second.get(timeout=30)
    assert len(rig.runs("no-window")) == 2
    assert len(rig.runs("window")) == 1
