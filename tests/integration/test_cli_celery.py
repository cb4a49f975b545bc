"""`celery -A app singleflight ...`, and counters scraped from prefork workers."""

from __future__ import annotations

import inspect
import json
import os
import sys
import urllib.request
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from singleflight import Lease
from singleflight.events import short_key
from singleflight.key_rules import KeyRule
from singleflight.keys import lease_key
from singleflight.leases.claiming import Leases, Request, new_token
from singleflight.stores import open_store
from tests.support.bodylog import VARIABLE, BodyLog, overlaps
from tests.support.child import Child
from tests.support.commands import import_path
from tests.support.servers import ValkeyServer, free_port
from tests.support.waiting import until
from tests.support.wrapper import Program, needed

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

APP = """
import os
from celery import Celery, signals
from singleflight import Singleton
from singleflight.celery import install
from tests.support.bodylog import BodyLog

app = Celery("shop", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
listeners = []
if "METRICS_PORT" in os.environ:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.multiprocess import MultiProcessCollector
    from singleflight.metrics import prometheus

    listeners.append(prometheus())

    @signals.worker_init.connect
    def serve(**_):
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        start_http_server(int(os.environ["METRICS_PORT"]), addr="127.0.0.1", registry=registry)

install(app, prefix="shop", listeners=listeners)


@app.task(name="shop.recalculate", bind=True, singleton=Singleton(by="account_id"), acks_late=True)
def recalculate(self, account_id, reason=None):
    with BodyLog.from_environment().body(str(account_id), self.request.id) as body:
        body.work(0.2)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A running server."""
    with ValkeyServer() as running:
        yield running


@pytest.fixture
def place(server: ValkeyServer, tmp_path: Path) -> dict[str, str]:
    """The environment of whoever runs the app, which is in this test's folder."""
    (tmp_path / "shop.py").write_text(APP)
    path = import_path(tmp_path)["PYTHONPATH"]
    return {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{path}",
        "BROKER": server.url,
        VARIABLE: str(tmp_path / "bodies.log"),
    }


def celery(place: dict[str, str], tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a sub-command of the app."""
    program = Program((sys.executable, "-m", "celery", "-A", "shop", "singleflight"), "", place)
    return program.run(*words, cwd=tmp_path)


def test_the_apps_own_store_and_keys_are_used(
    server: ValkeyServer, place: dict[str, str], tmp_path: Path
) -> None:
    """ls, show and evict need no URL; a task is named with its arguments, in any of their spellings."""
    store = open_store(server.url)
    task = "shop.recalculate"
    unknown = celery(place, tmp_path, "show", task, '{"account_id": 7}')
    key = next(word.rstrip(":") for word in unknown.stderr.split() if word.startswith("shop:"))
    held = Leases(store).claim(Request(key, task, "run-1", new_token()))
    assert isinstance(held, Lease)
    lines = map(json.loads, celery(place, tmp_path, "ls", "--json").stdout.splitlines())
    (listed,) = [one for one in lines if one["key"] == key]  # a doctor's own key may still be there
    shown = [
        celery(place, tmp_path, "show", "--json", *words).stdout
        for words in ((short_key(key),), (task, '{"account_id": 7, "reason": "a click"}'))
    ]
    evicted = celery(place, tmp_path, "evict", "--yes", task, '{"account_id": 7}')
    free = Leases(store).claim(Request(key, task, "run-2", new_token()))
    assert isinstance(free, Lease)
    free.release()
    held.release()
    store.close()

    assert unknown.returncode == 1
    assert (listed["task"], listed["state"]) == (task, "running")
    assert {json.loads(text)["run_id"] for text in shown} == {"run-1"}
    assert evicted.returncode == 0


def test_mistakes_are_one_line(place: dict[str, str], tmp_path: Path) -> None:
    """Arguments that are no JSON, or do not fit the task, and a store that is away, give no traceback."""
    for words in (("shop.recalculate", "7"), ("shop.recalculate", '{"account": 7}')):
        done = celery(place, tmp_path, "show", *words)

        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
    away = celery({**place, "BROKER": "redis://:sesame@127.0.0.1:1/0"}, tmp_path, "ls")

    assert away.returncode == 1
    assert "gave no answer" in away.stderr
    assert "sesame" not in away.stderr
    assert "Traceback" not in away.stderr


def test_doctor_looks_at_the_app(place: dict[str, str], tmp_path: Path) -> None:
    """The same findings as `singleflight doctor -A`."""
    done = celery(place, tmp_path, "doctor")

    assert done.returncode == 0
    assert "1 singleton tasks" in done.stdout


def test_doctor_notices_another_app_under_the_same_prefix(
    server: ValkeyServer, place: dict[str, str], tmp_path: Path
) -> None:
    """A task that the app does not have holds a key of its prefix; a plain lease there is no other app."""
    prefix = "neighbours"
    (tmp_path / "shop.py").write_text(APP.replace('prefix="shop"', f"prefix={prefix!r}"))
    leases = Leases(open_store(server.url))
    alone = celery(place, tmp_path, "doctor")
    plain = leases.claim(Request(lease_key(prefix, "cron.nightly"), "cron.nightly", "1", new_token()))
    with_plain = celery(place, tmp_path, "doctor")
    rule = KeyRule(prefix=prefix, task="crm.render", signature=inspect.signature(lambda page: page), by="*")
    other = leases.claim(Request(rule.key((7,), {}) or "", "crm.render", "2", new_token()))
    with_other = celery(place, tmp_path, "doctor")
    for lease in (plain, other):
        assert isinstance(lease, Lease)
        lease.release()
    leases.store.close()

    words = "keys of tasks that this app does not have"
    assert words not in alone.stdout
    assert words not in with_plain.stdout
    assert f"{words}: crm.render" in " ".join(with_other.stdout.split())


def test_counters_of_prefork_workers_agree_with_what_ran(
    server: ValkeyServer, place: dict[str, str], tmp_path: Path
) -> None:
    """Two workers of four processes: grants are the starts in the log, skips the runs that were skipped."""
    needed("prometheus_client", "prometheus-client")
    from celery import Celery

    log, ports = BodyLog(tmp_path / "bodies.log"), [free_port(), free_port()]
    app = Celery("shop", broker=server.url, backend=server.url)
    with ExitStack() as stack:
        for port in ports:
            (tmp_path / f"metrics-{port}").mkdir()
            env = {"METRICS_PORT": str(port), "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / f"metrics-{port}")}
            worker = Child(
                [sys.executable, "-m", "celery", "-A", "shop", "worker", "-c4", "-lINFO", f"-nw{port}@%h"],
                log=tmp_path / f"worker-{port}.log", ready="ready.", env={**place, **env}, cwd=tmp_path,
            )  # fmt: skip
            stack.callback(worker.kill)
            worker.wait_ready()
        results = [app.send_task("shop.recalculate", (number % 4,)) for number in range(60)]
        until(lambda: all(result.ready() for result in results), 60)
        states = Counter(result.state for result in results)
        for result in results:
            result.forget()
        # A result is there a moment before its lease is given back and counted.
        until(lambda: _scraped(ports)["released", "finished"] == len(log.runs()))
        counted = _scraped(ports)
    app.close()

    assert overlaps(log.runs()) == []
    assert states["REVOKED"] > 0
    assert counted["granted", ""] + counted["took_over", ""] == len(log.runs()) == states["SUCCESS"]
    assert counted["skipped", "running"] == states["REVOKED"]
    assert counted["store_error", ""] == 0


def _scraped(ports: list[int]) -> Counter[Any]:
    from prometheus_client.parser import text_string_to_metric_families

    found: Counter[Any] = Counter()
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            text = page.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "singleflight_events_total":
                    found[sample.labels["event"], sample.labels["reason"]] += int(sample.value)
    return found


def test_a_warning_points_into_the_app_and_is_none_of_a_commands(
    place: dict[str, str], tmp_path: Path
) -> None:
    """Python says it with file and line where the app is used; who lists leases has not asked about it."""
    careless = '@app.task(name="shop.careless", singleton=True)\ndef careless(account_id):\n    pass\n'
    (tmp_path / "shop.py").write_text(f"{APP}\n\n{careless}")
    line = f"{APP}\n\n".count("\n") + 1
    used = Program((sys.executable, "-c", "import shop; shop.app.finalize()"), "", place).run(cwd=tmp_path)
    listed = celery(place, tmp_path, "ls")
    doctor = celery(place, tmp_path, "doctor")

    assert f"shop.py:{line}: UserWarning: task shop.careless takes account_id" in used.stderr
    assert "careless" not in listed.stderr
    assert "shop.careless takes account_id" in doctor.stdout
    assert "careless" not in doctor.stderr
