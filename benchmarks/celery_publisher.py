"""Publishes for `celery_overhead`: reads ``[first, last]`` from each line, answers with microseconds."""

from __future__ import annotations

import json
import sys
import time

from benchmarks.celery_app import app, mark, recalculate

queue = f"parked-{app.conf.task_default_queue}"
for line in sys.stdin:
    numbers = range(*json.loads(line))
    mark.apply_async(("first",), queue=queue)
    began, cpu = time.perf_counter(), time.process_time()
    for number in numbers:
        recalculate.apply_async((number,), queue=queue)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    mark.apply_async(("last",), queue=queue)
    print(json.dumps([wall / len(numbers) * 1e6, cpu / len(numbers) * 1e6]), flush=True)
