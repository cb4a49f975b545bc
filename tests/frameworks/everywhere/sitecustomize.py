"""Loaded by each Python of a run at its start, children included: puts singleflight everywhere."""

import os
import traceback

MODE = os.environ.get("SINGLEFLIGHT_SUITE_MODE", "plain")
"""``plain``, ``installed``, ``observe`` or ``singleton``; see `tests.frameworks.suites.MODES`."""
STORE = os.environ.get("SINGLEFLIGHT_SUITE_STORE")
"""The URL of the store; nothing: the one that singleflight finds by itself."""


def put() -> None:
    """Patch what this run has installed."""
    if MODE != "plain":
        if os.environ["SINGLEFLIGHT_SUITE_FRAMEWORK"] == "celery":
            import on_celery

            on_celery.put(MODE, STORE)
        else:
            import on_dramatiq

            on_dramatiq.put(MODE, STORE)
    if "SINGLEFLIGHT_SUITE_REDIS_PORT" in os.environ:
        import usual_ports

        usual_ports.move()


try:
    put()
except BaseException:  # noqa: BLE001 - Python would print it and go on without
    traceback.print_exc()
    os._exit(70)
