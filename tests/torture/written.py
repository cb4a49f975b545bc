"""Histories written by hand, for the tests of the judge."""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.torture.history import NEVER, Body, History, Request

KEY = "singleflight:key"


class Written:
    """Collects requests and bodies of one key; times in seconds, a ttl of one second."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.bodies: list[Body] = []
        self._numbers = count(1)

    def ask(
        self, what: str, token: str, called: float, returned: float, answer: str, told: dict | None = None,
        **asked: Any,
    ) -> Written:  # fmt: skip
        """Add a request; an answer of `` says that none was heard."""
        facts = {"run_id": f"run-{token}", "token": token, "attempt": 0, "ttl_ms": 1000, "window_ms": 0}
        facts |= {"outcome": "finished", "grace_ms": 0} | asked
        number = f"r{next(self._numbers)}"
        until = returned if answer else NEVER
        self.requests.append(Request(number, token, what, KEY, facts, called, until, answer, told or {}))
        return self

    def grant(self, token: str, at: float, fence: int, *, took_over: bool = False, **asked: Any) -> Written:
        """Add a claim that was granted, ten milliseconds long."""
        told = {"fence": fence, "took_over": took_over}
        return self.ask("claim", token, at, at + 0.01, "granted", told, **asked)

    def refuse(self, token: str, at: float, reason: str, run: str = "", **asked: Any) -> Written:
        """Add a claim that was refused."""
        return self.ask("claim", token, at, at + 0.01, "busy", {"reason": reason, "run": run}, **asked)

    def renew(self, token: str, at: float, answer: str = "renewed", **asked: Any) -> Written:
        """Add a renewal."""
        return self.ask("renew", token, at, at + 0.01, answer, **asked)

    def release(self, token: str, at: float, answer: str = "ours", **asked: Any) -> Written:
        """Add a release."""
        return self.ask("release", token, at, at + 0.01, answer, **asked)

    def body(self, token: str, started: float, seen: float, fence: int, **more: Any) -> Written:
        """Add a body that held its lease all the time."""
        facts = {"held_until": seen, "how": "returned", "run": f"run-{token}", "message": f"run-{token}"}
        facts |= more
        number = f"b{next(self._numbers)}"
        self.bodies.append(Body(number, token, KEY, facts.pop("run"), 0, fence, started, seen=seen, **facts))
        return self

    def history(self, **more: Any) -> History:
        """Return it all."""
        return History(
            tuple(sorted(self.requests, key=lambda one: one.called)),
            tuple(sorted(self.bodies, key=lambda one: one.started)),
            **more,
        )
