"""What processes under torture write down: each its own file, each line by one `write`."""

from __future__ import annotations

import json
import os
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singleflight.lease import Busy, Granted
from singleflight.stores.base import Renewed
from tests.torture.history import History, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from singleflight.errors import SingleflightError
    from singleflight.stores.base import Claim, Release, Renewal, Store


FOLDER = "TORTURE_FOLDER"
"""Environment variable that names the folder of journals to children."""


class Journal:
    """The file of one process; a fork of it writes one of its own."""

    def __init__(self, folder: str | Path, name: str) -> None:
        self.folder = Path(folder)
        self.name = name
        self._files: dict[int, int] = {}
        self._numbers = count()

    def write(self, event: str, /, *, at: float | None = None, **facts: Any) -> None:
        """Write one line."""
        line = {"event": event, "at": time.monotonic() if at is None else at, **facts}
        os.write(self._file(), json.dumps(line).encode() + b"\n")

    def new_id(self) -> str:
        """Return a name for a request or a body that no other process gives."""
        return f"{self.name}.{os.getpid()}.{next(self._numbers)}"

    def _file(self) -> int:
        pid = os.getpid()
        if pid not in self._files:
            path = self.folder / f"{self.name}-{pid}.jsonl"
            self._files[pid] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return self._files[pid]


def recorded(store: Store, journal: Journal) -> Store:
    """Have a store's requests and answers written down, those of its keeper too."""
    own = _Noting(store, journal)
    for name in ("claim", "renew", "release"):
        setattr(store, name, getattr(own, name))
    return store


class _Noting:
    """The operations of a store, each with a line before and one after."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._claim, self._renew, self._release = store.claim, store.renew, store.release
        self._journal = journal

    def claim(self, request: Claim) -> Granted | Busy:
        id_ = self._asks("claim", request)
        answer = self._claim(request)
        if isinstance(answer, Granted):
            self._hears(id_, "granted", fence=answer.fence, took_over=answer.took_over)
        else:
            self._hears(id_, "busy", reason=str(answer.reason), run=answer.run_id)
        return answer

    def renew(self, requests: Sequence[Renewal]) -> Sequence[Renewed | SingleflightError]:
        ids = [self._asks("renew", request) for request in requests]
        answers = self._renew(requests)
        for id_, answer in zip(ids, answers, strict=True):
            if isinstance(answer, Renewed):
                self._hears(id_, str(answer))
        return answers

    def release(self, request: Release) -> bool:
        id_ = self._asks("release", request)
        answer = self._release(request)
        self._hears(id_, "ours" if answer else "not ours")
        return answer

    def _asks(self, what: str, request: Claim | Renewal | Release) -> str:
        id_ = self._journal.new_id()
        asked = {name: value for name, value in request._asdict().items() if name not in ("key", "holder")}
        self._journal.write("call", id=id_, who=self._journal.name, what=what, key=request.key, asked=asked)
        return id_

    def _hears(self, id_: str, answer: str, **told: object) -> None:
        self._journal.write("return", id=id_, answer=answer, told=told)


def gathered(folder: Path) -> History:
    """Read all journals of a folder."""
    lines: list[str] = []
    for path in sorted(folder.glob("*.jsonl")):
        lines += path.read_text("utf-8", "replace").splitlines()
    return read(lines)
