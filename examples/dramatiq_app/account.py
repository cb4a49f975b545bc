"""What all processes know together: which numbers were sent and handled, and which were faulty.

It is all in Redis. Handling a message and noting that it is handled are one step (a script), so a number
that is delivered twice, because its worker died before the acknowledgement, is still handled once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import redis

KEEP = 24 * 3600
"""Seconds after which the account of a run is forgotten."""

ERRORS = "example:errors"
"""The list of faulty messages, of all runs; whoever asks for them takes them away."""

# KEYS: the bits of handled numbers, the totals, the list of errors. ARGV: number, error or '', expiry.
# Returns 1, or 0 if the number was handled before.
HANDLE = """
redis.call('EXPIRE', KEYS[2], ARGV[3])
if redis.call('SETBIT', KEYS[1], ARGV[1], 1) == 1 then
    redis.call('HINCRBY', KEYS[2], 'copies', 1)
    return 0
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('HINCRBY', KEYS[2], 'handled', 1)
if ARGV[2] ~= '' then
    redis.call('HINCRBY', KEYS[2], 'faulty', 1)
    redis.call('RPUSH', KEYS[3], ARGV[2])
end
return 1
"""

# KEYS: the totals. ARGV: number, fence, process, expiry. Does nothing if a later generator has taken over.
MARK = """
if tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') <= tonumber(ARGV[2]) then
    redis.call('HSET', KEYS[1], 'sent', ARGV[1], 'fence', ARGV[2], 'generator', ARGV[3])
    redis.call('EXPIRE', KEYS[1], ARGV[4])
end
"""

# KEYS: the list of errors. Returns all of it, and removes it.
TAKE = """
local errors = redis.call('LRANGE', KEYS[1], 0, -1)
redis.call('DEL', KEYS[1])
return errors
"""


@dataclass(frozen=True, slots=True)
class Totals:
    """How a run stands."""

    sent: int
    handled: int
    faulty: int
    doubled: int
    """Numbers handled more than once."""
    lost: int
    """Numbers sent and not handled; while the run goes on, those on their way."""
    copies: int
    """Deliveries of numbers that were handled already: recognised, and left alone."""


class Account:
    """The account of one run."""

    def __init__(self, url: str, run: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._bits, self._totals = f"example:{run}:numbers", f"example:{run}:totals"
        self._handle = self._client.register_script(HANDLE)
        self._mark = self._client.register_script(MARK)
        self._take = self._client.register_script(TAKE)

    def handle(self, number: int, error: str) -> bool:
        """Handle a number: note it, and keep its error if it is faulty. False if that was done before."""
        keys = [self._bits, self._totals, ERRORS]
        return bool(self._handle(keys=keys, args=[number, error, KEEP]))

    def sent(self) -> int:
        """Return the last number that is known to be sent."""
        return int(self._client.hget(self._totals, "sent") or 0)

    def mark(self, number: int, fence: int) -> None:
        """Note that all numbers up to this one are sent, unless a later generator has taken over."""
        self._mark(keys=[self._totals], args=[number, fence, os.getpid(), KEEP])

    def generator(self) -> int:
        """Return the process that last noted what it has sent; 0 if there is none."""
        return int(self._client.hget(self._totals, "generator") or 0)

    def handled(self) -> int:
        """Return how many numbers are handled."""
        return int(self._client.hget(self._totals, "handled") or 0)

    def totals(self) -> Totals:
        """Return how the run stands."""
        with self._client.pipeline() as both:  # in one step, or a number could come in between
            both.hgetall(self._totals)
            both.bitcount(self._bits)
            found, distinct = both.execute()
        handled = int(found.get("handled", 0))
        sent = int(found.get("sent", 0))
        return Totals(
            sent=sent,
            handled=handled,
            faulty=int(found.get("faulty", 0)),
            doubled=handled - distinct,
            lost=sent - distinct,
            copies=int(found.get("copies", 0)),
        )

    def take_errors(self) -> list[str]:
        """Return all errors and remove them, in one step: nobody else gets the same ones."""
        errors: list[str] = self._take(keys=[ERRORS])
        return errors

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
