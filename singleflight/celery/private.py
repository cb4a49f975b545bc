"""The private parts of Celery that singleflight stands on, all of them, and what each is needed for.

Look here first when a new Celery is out; `tests/unit/test_private.py` holds this list to the code.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIVATE: Mapping[str, str] = MappingProxyType(
    {
        "_tasks": "the app's registry, where every task is seen; `app.tasks` would finalize the app",
        "_task_from_fun": "before 5.7, the only place that sees a second function take a task's name",
        "_get_current_object": "the app behind `current_app`, to see whether a task's own app has leases",
        "_protected": "a request that has its body: a direct call from inside gets a request of its own",
        "_result": "what an eager run has returned, which a skipped one must not",
        "_request_dict": "what the worker's main process hands to the pool: our `Arrival` is put into it",
        "_content_type": "how a message's body is written: a deferred one is written alike",
        "_context": "the request as result backends take it, to store that a run was lost too often",
        "_announce_revoked": "overridden: a run that is revoked or has expired leaves its waiting slot",
        "_retry_worker_lost": "overridden (5.7): whether a run whose process was lost is published again",
        "_already_revoked": "a terminated run ends as cancelled",
        "_already_cancelled": "a request that goes back to the broker is not over",
        "_dump_pydantic_arguments": "5.7: a publisher's key is made of what the worker will see",
        "_heap": "beat's heap of what is due, made anew when a replica learns of a tick",
        "_when": "when beat's heap has an entry come up",
    }
)
"""By name. Besides, ``Task.request.__dict__`` is read, over which Celery spreads a message's headers."""
