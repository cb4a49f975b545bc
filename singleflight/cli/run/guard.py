"""Watching over a running command: its lease, its time, its signals; it never runs on unprotected."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from singleflight.cli.exits import Exit
from singleflight.cli.run.signals import ENDING, FORWARDED, stop_self
from singleflight.lease import margin, monotonic
from singleflight.leases.keeper import process_keeper

if TYPE_CHECKING:
    from singleflight.cli.run.child import Child
    from singleflight.cli.run.signals import Signals
    from singleflight.cli.run.terminal import Terminal
    from singleflight.lease import Lease

FOR_EVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, in seconds."""

    timeout: float = FOR_EVER
    """The command's run."""
    kill_after: float = 5.0
    """From TERM to KILL."""
    escalate: bool = False
    """Let KILL follow also a TERM that was sent to us; programs may use TERM for purposes of their own."""


class Guard:
    """Stays with a command until it has ended.

    The lease can be trusted until *expiry - margin*. Where it is not renewed, TERM goes out ``kill_after``
    and another margin before that, so that KILL, if it must be, still comes before anybody else can start.
    A lease that is lost at once (evicted, or this process was paused) leaves a margin between the two.
    """

    def __init__(
        self, child: Child, lease: Lease, signals: Signals, limits: Limits, terminal: Terminal | None
    ) -> None:
        self._child, self._lease, self._signals, self._limits = child, lease, signals, limits
        self._terminal = terminal
        self._margin = margin(lease.ttl)
        self._ends = monotonic() + limits.timeout
        self._kill_at = FOR_EVER
        self.told_to_end = False
        """A signal was sent to us that ends programs."""
        self.cause: Exit | None = None
        """Why the command was told to end, if it was we who said so."""

    def stay(self) -> int:
        """Wait for the end of the command; return its exit code, negative for a signal."""
        while True:
            stopped = self._child.look()
            if self._child.code is not None:
                break
            if stopped is not None:
                self._suspend(stopped)
            for number in self._signals.wait(self._act()):
                if number in FORWARDED:
                    self._child.send(number)
                self.told_to_end = self.told_to_end or number in ENDING
                if number == signal.SIGTERM and self._limits.escalate:
                    self._kill_at = min(self._kill_at, monotonic() + self._limits.kill_after)
        if self.cause is not None:
            # What the command has left behind must not go on either; otherwise it may.
            self._child.send(signal.SIGKILL)
        if self._terminal is not None and self._terminal.has(self._child.group):
            self._terminal.take_back()
        return self._child.code

    def _act(self) -> float:
        """Do what is due; return the seconds until something may be due again."""
        now, left = monotonic(), self._lease.expires_in
        if self.cause is not Exit.LOST and left <= self._limits.kill_after + self._margin:
            self._end(Exit.LOST, now, min(self._limits.kill_after, max(left - self._margin, self._margin)))
        elif self.cause is None and now >= self._ends:
            self._end(Exit.TIMEOUT, now, self._limits.kill_after)
        if now >= self._kill_at:
            self._child.send(signal.SIGKILL)
            self._kill_at = FOR_EVER
        due = [self._kill_at - now]
        if self.cause is None:
            due.append(self._ends - now)
        if self.cause is not Exit.LOST:
            due.append(left - self._limits.kill_after - self._margin)
        return min(due)

    def _end(self, cause: Exit, now: float, grace: float) -> None:
        self.cause = cause
        self._kill_at = min(self._kill_at, now + grace)
        self._child.send(signal.SIGTERM)
        self._child.send(signal.SIGCONT)  # a stopped command could not act on it

    def _suspend(self, stopped: int) -> None:
        """Stop with the command, as one job of the shell; on a lease that lapsed meanwhile, do not go on."""
        terminal = self._terminal
        if terminal is None:
            return
        if stopped in (signal.SIGTTIN, signal.SIGTTOU) and terminal.ours:
            # It had no foreground because a pipe's other end might need it; now it is the one who does.
            terminal.give(self._child.group)
            self._child.send(signal.SIGCONT)
            return
        had_foreground = terminal.has(self._child.group)
        if had_foreground:
            terminal.take_back()
        stop_self()
        if not self._lease.held:
            process_keeper().renew_now(self._lease)
        if self._lease.held:
            if had_foreground and terminal.ours:
                terminal.give(self._child.group)
            self._child.send(signal.SIGCONT)
