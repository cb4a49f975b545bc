"""The lease of one key as plainly as it can be said: what real stores are compared with.

Written apart from the stores, one mutable object and one `if` per rule, times in milliseconds. It says
what DESIGN's table says and knows nothing of stores, expiry of keys, or how records are kept.
"""

from __future__ import annotations

from typing import Any

FOR_GOOD = 1 << 30
FINAL = ("finished", "failed", "cancelled")


class Model:
    """One key. `look` before each operation, `leave` after it; answers are plain values."""

    def __init__(self, remember: int) -> None:
        self.remember = remember
        self.forget()

    def forget(self) -> None:
        """Start without a record."""
        self.there = False
        self.dies = 0
        self.token = self.run = self.outcome = self.slot = ""
        self.fence = self.expires = self.ttl = self.started = self.opens = self.slot_until = 0
        self.held = self.reserved = self.fresh = False
        self.runs: dict[str, tuple[int, bool]] = {}
        self._unseen: dict[str, Any] = {}

    def look(self, now: int) -> None:
        """Let the record die of age, and see it without what a clock that stepped back has spoiled."""
        if self.there and self.dies <= now:
            self.forget()
        self._unseen = vars(self) | {"runs": dict(self.runs)}
        self.expires = min(self.expires, now + self.ttl)
        if self.started > now:
            self.opens = max(0, self.opens - (self.started - now))
            self.started = now

    def leave(self) -> None:
        """After an operation that wrote nothing, the record is as it was before the look."""
        if self._unseen:
            vars(self).update(self._unseen)
        self._unseen = {}

    def claim(  # noqa: C901, PLR0912 - the table's rows, one after another
        self,
        now: int,
        run: str,
        attempt: int,
        token: str,
        ttl: int,
        *,
        window: int,
        after: str | None,
        wait: int,
        first: bool,
    ) -> tuple[Any, ...]:
        """Return ("granted", fence, took over, started, opens) or ("busy", reason, ...)."""
        live = self.held and self.expires > now
        if live and self.token == token:
            self._written(now)
            return ("granted", self.fence, False, self.started, self.opens)
        done = run in self.runs and self.runs[run] >= (attempt, True)
        resumed = not done and (attempt > 0 or run in self.runs)
        shut_until = self.opens
        if window and self.started:
            shut_until = max(shut_until, self.started + window)
        waits = bool(self.slot) and self.slot_until > now
        reason, left = "", 0
        if done:
            reason = "finished"
        elif live and self.run == run:
            reason, left = "same_run", self.expires - now
        elif live:
            reason, left = "running", self.expires - now
        elif not resumed and shut_until and now <= shut_until:
            reason, left = "window", shut_until - now + 1
        elif not resumed and waits and self.reserved and self.slot != run and not first:
            reason, left = "reserved", self.slot_until - now
        elif after is not None and self.run not in ("", run, after):
            reason = "superseded"
        if reason:
            if self.slot == run:
                if reason not in ("same_run", "finished"):
                    until = now + wait if first else max(self.slot_until, now + wait)
                    self._put_in_slot(run if wait else "", until if wait else 0, bool(wait) and first)
            elif wait and reason in ("running", "window") and not waits:
                self._put_in_slot(run, now + wait, first)
            self._written(now)
            return self._busy(now, reason, self.run, left, resumed)
        took_over = self.held and self.token != token
        if not resumed or not self.started:
            self.started = now
            if window:
                self.opens = max(self.opens, now + window)
        self.fence = max(self.fence + 1, now * 1000)
        self.token, self.run, self.held, self.outcome = token, run, True, ""
        self.fresh = not resumed
        self.expires, self.ttl = now + ttl, ttl
        self._remember_run(run, attempt, ended=False)
        if self.slot == run:
            self._put_in_slot("", 0, reserved=False)
        self._written(now)
        return ("granted", self.fence, took_over, self.started, self.opens)

    def renew(
        self,
        now: int,
        run: str,
        attempt: int,
        token: str,
        fence: int,
        ttl: int,
        *,
        started: int,
        opens: int,
        age: int,
    ) -> str:
        """Return renewed, restored or lost."""
        if not self.there:
            if age >= self.remember:
                return "lost"
            self.token, self.run, self.fence, self.held, self.fresh = token, run, fence, True, False
            self.expires, self.ttl, self.started, self.opens = now + ttl, ttl, started, opens
            self._remember_run(run, attempt, ended=False)
            self._written(now)
            return "restored"
        if self.token != token or not self.held or self.outcome:
            return "lost"
        self.expires, self.ttl = now + ttl, ttl
        self._written(now)
        return "renewed"

    def release(
        self,
        now: int,
        run: str,
        attempt: int,
        token: str,
        outcome: str,
        *,
        grace: int,
        again: int,
        began: bool,
    ) -> bool:
        """Return whether the lease was the token's."""
        own = self.there and self.token == token
        overtaken = self.runs.get(run, (-1, False)) > (attempt, True)
        if not self.there:
            self.run = run
        if outcome in FINAL:
            self._remember_run(run, FOR_GOOD, ended=True)
            if self.slot == run:
                self._put_in_slot("", 0, reserved=False)
        if outcome == "retrying":
            self._remember_run(run, attempt, ended=True)
        if again and not overtaken and (self.slot in ("", run) or self.slot_until <= now):
            self._put_in_slot(run, now + again, reserved=False)
        if own and self.held:
            self.outcome = self.outcome or outcome
            if grace:
                self.expires = min(self.expires, now + grace)
            else:
                self.held = False
                if not began and self.fresh:
                    self.started = self.opens = 0
                    if outcome == "requeued":
                        self.runs.pop(run, None)
        self._written(now)
        return own

    def queue(self, now: int, run: str, ttl: int, *, running_too: bool) -> tuple[Any, ...] | None:
        """Return None, or ("busy", reason, ...)."""
        if run in self.runs:
            return self._busy(now, "finished", run, 0, resumed=False)
        if self.slot not in ("", run) and self.slot_until > now:
            return self._busy(now, "queued", self.slot, self.slot_until - now, resumed=False)
        if running_too and self.held and self.expires > now and self.run != run:
            return self._busy(now, "running", self.run, self.expires - now, resumed=False)
        self._put_in_slot(run, now + ttl, reserved=False)
        self._written(now)
        return None

    def unqueue(self, now: int, run: str) -> bool:
        """Return whether the slot was the run's."""
        if self.slot != run:
            return False
        self._put_in_slot("", 0, reserved=False)
        self._written(now)
        return True

    def evict(self, now: int) -> bool:
        """Return whether there was a record."""
        if self.there:
            self.held, self.token, self.outcome, self.started, self.opens = False, "", "cancelled", 0, 0
            self._put_in_slot("", 0, reserved=False)
            self._written(now)
        return self.there

    def _busy(self, now: int, reason: str, run: str, left: int, resumed: bool) -> tuple[Any, ...]:
        ended = self.runs.get(self.run) == (FOR_GOOD, True)
        waiting = self.slot if self.slot_until > now else ""
        return ("busy", reason, run, left, resumed, waiting, ended, self.started)

    def _put_in_slot(self, run: str, until: int, reserved: bool) -> None:
        self.slot, self.slot_until, self.reserved = run, until, reserved

    def _remember_run(self, run: str, attempt: int, *, ended: bool) -> None:
        if self.runs.get(run, (-1, False)) < (attempt, ended):
            # To the end of the list, as the youngest.
            self.runs.pop(run, None)
            self.runs[run] = (attempt, ended)

    def _written(self, now: int) -> None:
        self.there, self._unseen = True, {}
        self.dies = max(now, self.expires, self.opens, self.slot_until) + self.remember
