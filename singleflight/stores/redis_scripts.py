"""What runs inside Redis or Valkey, and what it answers; `singleflight.stores.redis` asks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from singleflight.lease import Busy, Holder, Reason
from singleflight.stores.base import Record, Run
from singleflight.stores.redis_errors import code_of, driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.stores.base import Renewal
    from singleflight.stores.redis_lines import ClusterLine, Line


@dataclass(frozen=True, slots=True)
class Script:
    """An operation as the server runs it."""

    text: str
    sha: str

    @classmethod
    def load(cls, operation: str) -> Script:
        """Read ``lua/<operation>.lua`` with the prelude before it."""
        folder = resources.files("singleflight.stores") / "lua"
        text = "\n".join((folder / f"{name}.lua").read_text("utf-8") for name in ("prelude", operation))
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    def run(self, line: Line | ClusterLine, key: str, arguments: Sequence[str | int]) -> Any:
        """Run it on one key; a grant counts only once it is as safe as was asked for."""
        try:
            return line.run(("EVALSHA", self.sha, 1, key, *arguments), sure=self is CLAIM)
        except driver.NoScriptError:
            return line.run(("EVAL", self.text, 1, key, *arguments), sure=self is CLAIM)


CLAIM, RENEW, RELEASE, QUEUE, UNQUEUE, EVICT, PEEK = map(
    Script.load, ("claim", "renew", "release", "queue", "unqueue", "evict", "peek")
)


def busy_of(reply: Sequence[Any]) -> Busy:
    """Return what a refusal says."""
    _, reason, run_id, retry_ms, holder, started_ms, resumed, waiting, ended = reply
    return Busy(
        Reason(reason.decode()),
        run_id.decode(errors="replace"),
        retry_ms / 1000,
        holder=Holder.decode(holder.decode(errors="replace")),
        since=started_ms / 1000 if started_ms else None,
        resumed=bool(resumed),
        waiting=waiting.decode(errors="replace"),
        ended=bool(ended),
    )


def record_of(text: bytes) -> Record:
    """Return a record as it lies in the server."""
    found = json.loads(text.decode(errors="replace"))
    del found["v"]
    runs = tuple(Run(run, attempt, bool(ended)) for run, attempt, ended in found.pop("runs", ()))
    return Record(
        run_id=found.pop("run", ""),
        fence=int(found.pop("fence", 0)),
        held=bool(found.pop("held", 0)),
        first=bool(found.pop("first", 0)),
        runs=runs,
        **found,
    )


def renewal_words(one: Renewal) -> tuple[str | int, ...]:
    """Return a renewal as its script takes it."""
    return (
        one.run_id, one.attempt, one.token, one.fence, one.ttl_ms,
        one.started_ms, one.opens_ms, one.age_ms, one.holder,
    )  # fmt: skip


def unanswered(answer: Any) -> bool:
    """Return whether a renewal was not answered; a record that is not ours is an answer."""
    return isinstance(answer, Exception) and code_of(answer) not in ("RECORDVERSION", "WRONGTYPE")
