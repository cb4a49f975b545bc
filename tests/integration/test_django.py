"""The Django project of `docs/celery.md`, as it stands there, with a worker and a publisher."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import redis

from tests.support.child import Child
from tests.support.commands import celery_command
from tests.support.servers import ValkeyServer

PAGE = Path(__file__).parents[2] / "docs/celery.md"
PUBLISH = """
import json
from shop.celery import app
from reports.tasks import nightly
first, second = nightly.delay(), nightly.delay()
for result in (first, second):
    result.get(timeout=30, propagate=False)
policy = app.singleflight.policy(app.tasks[nightly.name])
print(json.dumps([sorted([first.state, second.state]), policy.ttl, policy.window]))
"""


def project(folder: Path, broker: str, leases: str) -> None:
    """Write the page's files into a folder, with the servers that there are here."""
    files = re.findall(
        r"^```python\n# (\w+/\w+\.py)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in files] == ["shop/settings.py", "shop/celery.py", "reports/tasks.py"]
    for name, text in files:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        here = text.replace("redis://redis/0", broker).replace("redis://redis/1", leases)
        # With a window the second report is skipped however quick the first one is; few projects want one.
        file.write_text(here.replace('{"ttl": 20}', '{"ttl": 20, "window": 60}'), "utf-8")


def test_a_django_project_names_everything_in_its_settings(tmp_path: Path) -> None:
    """Store, prefix and defaults come from CELERY_SINGLEFLIGHT_...: the second of two reports is skipped."""
    with ValkeyServer() as server:
        leases = server.url.replace("/0", "/1")
        project(tmp_path, server.url, leases)
        env = {"PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "shop.settings"}
        argv = [*celery_command("shop.celery"), "worker", "-l", "INFO", "-c", "2", "--without-gossip"]
        worker = Child(
            [*argv, "--without-mingle"], log=tmp_path / "worker.log", ready=" ready.", env=env, cwd=tmp_path
        )
        try:
            worker.wait_ready()
            publish = [sys.executable, "-c", PUBLISH]
            said = subprocess.check_output(publish, env={**os.environ, **env}, cwd=tmp_path, timeout=60)
        finally:
            worker.kill()
        with redis.Redis.from_url(leases, decode_responses=True) as client:
            keys = list(client.scan_iter("*"))

    assert json.loads(said) == [["REVOKED", "SUCCESS"], 20.0, 60.0]
    assert [key.split(":")[0] for key in keys] == ["shop-production"]
