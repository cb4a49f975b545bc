"""What runs inside Redis or Valkey, and what it answers; `singleflight.stores.redis.store` asks."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from singleflight.lease import Busy, Granted, Holder, Reason
from singleflight.stores.base import Look, Record, Run
from singleflight.stores.lining import Called, Kind, Lined, LineLook, Standing, Waiting
from singleflight.stores.redis.errors import code_of, driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.stores.redis.connection import ClusterConnection, Connection
    from singleflight.stores.redis.wire import Word


@dataclass(frozen=True, slots=True)
class Script:
    """An operation as the server runs it."""

    text: str
    sha: str

    @classmethod
    def load(cls, operation: str) -> Script:
        """Read ``lua/<operation>.lua``, and in the place of a line such as ``--> read`` that file."""
        folder = resources.files("singleflight.stores.redis") / "lua"

        def lines_of(part: str) -> str:
            return (folder / f"{part}.lua").read_text("utf-8")

        text = re.sub(
            r"^ *--> (\w+)\n", lambda found: lines_of(found[1]), lines_of(operation), flags=re.MULTILINE
        )
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    def run(self, connection: Connection | ClusterConnection, key: str, arguments: Sequence[Word]) -> Any:
        """Run it on one key; a grant counts only once it is as safe as was asked for."""
        try:
            return connection.run(("EVALSHA", self.sha, 1, key, *arguments), sure=self is CLAIM)
        except driver.NoScriptError:
            return connection.run(("EVAL", self.text, 1, key, *arguments), sure=self is CLAIM)


CLAIM, RENEW, RELEASE, QUEUE, UNQUEUE, EVICT, PEEK, LOOK, DUE, WAITING = map(
    Script.load,
    ("claim", "renew", "release", "queue", "unqueue", "evict", "peek", "look", "due", "waiting"),
)

_IN_LINE = ("waiting", "parked", "queued", "order", "call_no", "line_ms", "moment_ms")
"""Fields of a record, in the order of lua/peek.lua."""

_GRANT = struct.Struct(">Bddd")


def numbers(*values: float) -> bytes:
    """Return all numbers that a script is given as the one word that it takes."""
    return struct.pack(f">{len(values)}d", *values)


def lined_of(key: str, reply: Any) -> Lined:
    """Return what a claim was told, and what it has called."""
    if isinstance(reply, bytes) or not isinstance(reply[0], int):
        return Lined(_answer_of(reply))
    _, answer, order, *words = reply
    return Lined(_answer_of(answer), called_of(key, words), order)


def _answer_of(reply: bytes | Sequence[Any]) -> Granted | Busy:
    if not isinstance(reply, bytes):
        return busy_of(reply)
    took_over, fence, started_ms, opens_ms = _GRANT.unpack(reply)
    return Granted(int(fence), bool(took_over), int(started_ms), int(opens_ms))


def called_of(key: str, words: Sequence[Any]) -> tuple[Called, ...]:
    """Return the messages that a script has called, as lua/look.lua gives them."""
    return tuple(
        Called(key, _text(run), int(call_no), int(order), _text(home), message)
        for run, call_no, order, home, message in zip(*(words[at::5] for at in range(5)), strict=True)
    )


def line_of(reply: Sequence[Any]) -> LineLook:
    """Return what lua/waiting.lua has found."""
    waiting, now_ms, *shown = reply
    return LineLook(waiting, tuple(map(_waiting_of, shown)), now_ms)


def _waiting_of(words: Sequence[Any]) -> Waiting:
    run, attempt, order, kind, standing, begun, ending, home, since_ms, calls = words
    return Waiting(
        *(_text(run), attempt, order, Kind(kind.decode()), Standing(standing.decode())),
        *(bool(begun), bool(ending), _text(home), since_ms, calls),
    )


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
    now_ms, remaining_ms, held, first, *numbers, reason, token, run, outcome, holder, slot, runs = reply[:-8]
    fence, expires_ms, ttl_ms, started_ms, opens_ms, slot_expires_ms, refused, refused_ms = numbers
    record = Record(
        token=_text(token),
        run_id=_text(run),
        fence=fence,
        held=bool(held),
        fresh=held == 2,  # noqa: PLR2004 - see lua/read.lua
        expires_ms=expires_ms,
        ttl_ms=ttl_ms,
        started_ms=started_ms,
        opens_ms=opens_ms,
        outcome=_text(outcome),
        holder=_text(holder),
        runs=tuple(map(_run_of, runs.split(b"\xff")[1:])),
        slot=_text(slot),
        slot_expires_ms=slot_expires_ms,
        first=bool(first),
        refused=refused,
        refused_ms=refused_ms,
        refused_reason=_text(reason),
        **dict(zip(_IN_LINE, reply[-8:-1], strict=True)),
        homes=_text(reply[-1]),
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
