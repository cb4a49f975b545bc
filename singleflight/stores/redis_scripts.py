"""What runs inside Redis or Valkey, and what it answers; `singleflight.stores.redis` asks."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from singleflight.lease import Busy, Granted, Holder, Reason
from singleflight.stores.base import Look, Record, Run
from singleflight.stores.redis_errors import code_of, driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.stores.base import Renewal
    from singleflight.stores.redis_lines import ClusterLine, Line
    from singleflight.stores.redis_wire import Word


@dataclass(frozen=True, slots=True)
class Script:
    """An operation as the server runs it."""

    text: str
    sha: str

    @classmethod
    def load(cls, *parts: str) -> Script:
        """Read the files in ``lua/`` of which it consists, the operation last."""
        folder = resources.files("singleflight.stores") / "lua"
        text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("prelude", *parts))
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    def run(self, line: Line | ClusterLine, key: str, arguments: Sequence[Word]) -> Any:
        """Run it on one key; a grant counts only once it is as safe as was asked for."""
        try:
            return line.run(("EVALSHA", self.sha, 1, key, *arguments), sure=self is CLAIM)
        except driver.NoScriptError:
            return line.run(("EVAL", self.text, 1, key, *arguments), sure=self is CLAIM)


CLAIM = Script.load("runs", "busy", "beside", "line", "claim")
RENEW = Script.load("runs", "renew")
RELEASE = Script.load("runs", "beside", "tell", "release")
QUEUE = Script.load("runs", "busy", "queue")
UNQUEUE = Script.load("beside", "line", "tell", "unqueue")
EVICT = Script.load("beside", "tell", "evict")
PEEK = Script.load("peek")

_GRANT = struct.Struct(">Bddd")


def numbers(*values: float) -> bytes:
    """Return all numbers that a script is given as the one word that it takes."""
    return struct.pack(f">{len(values)}d", *values)


def answer_of(reply: bytes | Sequence[Any]) -> Granted | Busy:
    """Return what a claim was told."""
    if not isinstance(reply, bytes):
        return busy_of(reply)
    took_over, fence, started_ms, opens_ms = _GRANT.unpack(reply)
    return Granted(int(fence), bool(took_over), int(started_ms), int(opens_ms))


def busy_of(reply: Sequence[Any]) -> Busy:
    """Return what a refusal says."""
    reason, run_id, retry_ms, holder, started_ms, resumed, waiting, ended = reply
    return Busy(
        Reason(reason.decode()),
        _text(run_id),
        retry_ms / 1000,
        holder=Holder.decode(_text(holder)),
        since=started_ms / 1000 if started_ms else None,
        resumed=bool(resumed),
        waiting=_text(waiting),
        ended=bool(ended),
    )


def look_of(reply: Sequence[Any]) -> Look | None:
    """Return what PEEK has found."""
    if not reply:
        return None
    now_ms, remaining_ms, remembered, *fields = reply
    names, values = map(bytes.decode, fields[::2]), fields[1::2]
    found = dict(zip(names, values, strict=True))
    runs = tuple(map(_run_of, remembered.split(b"\xff")[1:]))
    record = Record(
        token=_text(found["token"]),
        run_id=_text(found["run"]),
        fence=found["fence"],
        held=bool(found["held"]),
        expires_ms=found["expires_ms"],
        ttl_ms=found["ttl_ms"],
        started_ms=found["started_ms"],
        opens_ms=found["opens_ms"],
        outcome=_text(found["outcome"]),
        holder=_text(found["holder"]),
        runs=runs,
        slot=_text(found["slot"]),
        slot_expires_ms=found["slot_expires_ms"],
        first=bool(found["first"]),
        refused=found["refused"],
        refused_ms=found["refused_ms"],
        refused_reason=_text(found["refused_reason"]),
    )
    return Look(record, now_ms, remaining_ms)


def _run_of(entry: bytes) -> Run:
    """Return a run as lua/runs.lua has written it."""
    run_id, _, rest = entry.partition(b"\xfe")
    return Run(_text(run_id), int(rest[1:]), ended=rest[:1] == b"1")


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def unanswered(answer: Any) -> bool:
    """Return whether a renewal was not answered; a record that is not ours is an answer."""
    return isinstance(answer, Exception) and code_of(answer) not in ("RECORDVERSION", "WRONGTYPE")
