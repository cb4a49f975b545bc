"""Leases in Redis (6.2 or newer) or Valkey: one packed string per key, changed by scripts that run alone.

The record's fields are listed in ``lua/read.lua``. Every operation is one round trip:
1. EVALSHA of the operation, on one key; EVAL if the server has forgotten the script. A `Connection` knows
   which server has the key: the one there is, the one that sentinels name, a node of a cluster.
2. The script reads the record and the server's clock, decides, writes, and sets the key's expiry.
3. A connection that breaks or times out is tried once more: a claim is recognised by its token, the
   other operations are the same twice as once. A renewal is not: the next beat is its retry.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from singleflight.errors import SingleflightError
from singleflight.stores.base import REMEMBER, Renewed
from singleflight.stores.bounds import check_claim, check_place, check_release, check_wait
from singleflight.stores.lining import MAX_CALLED, Arrival, Released, Swept
from singleflight.stores.redis.errors import PASSING, code_of, driver, permanent, translated
from singleflight.stores.redis.operated import Operated
from singleflight.stores.redis.scripts import (
    CLAIM,
    DUE,
    EVICT,
    LOOK,
    PEEK,
    QUEUE,
    RELEASE,
    RENEW,
    UNQUEUE,
    WAITING,
    Script,
    busy_of,
    called_of,
    line_of,
    lined_of,
    look_of,
    numbers,
    unanswered,
)
from singleflight.stores.redis.topology import Cluster, topology_from_client, topology_from_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from singleflight.lease import Busy, Granted
    from singleflight.stores.base import Claim, Look, Release, Renewal
    from singleflight.stores.lining import Called, Lined, LineLook, Wait
    from singleflight.stores.redis.topology import Topology
    from singleflight.stores.redis.wire import Word

    Answer = TypeVar("Answer")
    Question = Callable[[Any], Answer]

NOWHERE = Arrival()
"""Of somebody who knows nothing of lines."""

LONGEST_WAIT = 1.0
"""Seconds for which `listen` blocks at most."""

TICK = 0.1
"""Seconds: a server looks ten times a second which of its blocked clients' time is over."""

GLANCE = 0.03
"""Seconds between two looks of somebody whose time is nearly over."""

LEAST_TIMEOUT = 0.05
"""Seconds: no renewal waits less, however short its lease, or a busy machine would never renew one."""


class RedisStore(Operated):
    """A `Store` in Redis or Valkey; safe to use from any thread and on both sides of a fork.

    Args:
        topology: where leases are kept: a URL, or what `topology_from_url` makes of one.
        timeout: seconds that one request may take, including its retry.
        remember: seconds for which an ended run is recognised.
    """

    def __init__(self, topology: str | Topology, *, timeout: float = 1.0, remember: float = REMEMBER) -> None:
        super().__init__(topology_from_url(topology) if isinstance(topology, str) else topology, timeout)
        self.remember = remember

    @classmethod
    def from_url(
        cls, url: str, *, timeout: float = 1.0, remember: float = REMEMBER, **options: Any
    ) -> RedisStore:
        """Open the store at a URL as in `singleflight.stores.redis.topology`."""
        return cls(topology_from_url(url, **options), timeout=timeout, remember=remember)

    @classmethod
    def from_client(cls, client: Any, *, timeout: float = 1.0, remember: float = REMEMBER) -> RedisStore:
        """Open a store on the servers of a ready client, through connections of its own."""
        return cls(topology_from_client(client), timeout=timeout, remember=remember)

    def claim(self, claim: Claim) -> Granted | Busy:
        """See `Store.claim`."""
        return self.claim_in_line(claim, NOWHERE).answer

    def claim_in_line(self, claim: Claim, arrival: Arrival) -> Lined:
        """See `Lining.claim_in_line`."""
        return self._claim(claim, arrival)

    def park(self, claim: Claim, arrival: Arrival, wait: Wait) -> Lined:
        """See `Lining.park`."""
        check_wait(wait)
        return self._claim(claim, arrival, wait.kind, wait.home, wait.message, wait.life_ms)

    def _claim(self, claim: Claim, arrival: Arrival, *wait: Word) -> Lined:
        check_claim(claim)
        numbers = (claim.ttl_ms, claim.window_ms, claim.wait_ms, claim.waits, arrival.call_no, arrival.order)
        reply = self._ask(
            CLAIM,
            claim.key,
            numbers,
            claim.attempt,
            claim.run_id,
            claim.token,
            claim.holder,
            "" if claim.after is None else f"={claim.after}",
            "\n".join(arrival.homes),
            *wait,
        )
        return lined_of(claim.key, reply)

    def renew(self, renewals: Sequence[Renewal]) -> list[Renewed | SingleflightError]:
        """See `Store.renew`.

        Leases of about the same length go out in one pipeline to each server, on connections that no other
        request can hold up: a short lease cannot wait long, and a long one need not hurry for its sake.
        A key that holds no record of ours (another version, another type) is LOST to its holder and does
        not hinder the others; nor does a node of a cluster that is away.
        """
        groups: dict[float, list[Renewal]] = {}
        for one in renewals:
            groups.setdefault(self._renewal_timeout(one.ttl_ms / 1000), []).append(one)
        answers: dict[int, Renewed | SingleflightError] = {}
        for timeout, group in sorted(groups.items()):
            try:
                got = self._renew(group, timeout)
            except SingleflightError as error:
                if len(groups) == 1:
                    raise
                got = [error] * len(group)
            answers.update(zip(map(id, group), got, strict=True))
        return [answers[id(one)] for one in renewals]

    def _renewal_timeout(self, ttl: float) -> float:
        """Return how long a renewal may take: at most a tenth of its ttl, in few steps: each has a pool."""
        timeout = self.timeout
        while timeout > max(ttl / 10, LEAST_TIMEOUT):
            timeout /= 2
        return max(timeout, min(LEAST_TIMEOUT, self.timeout))

    def _renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Renewed | SingleflightError]:
        connection = self._connections.get(f"renewals, {timeout} s", timeout)
        commands = [(1, one.key, *self._renewal(one)) for one in renewals]
        with self._connections.translating(connection, renewals[0].key):
            answers = connection.run_all([("EVALSHA", RENEW.sha, *command) for command in commands])
            forgotten = [i for i, answer in enumerate(answers) if isinstance(answer, driver.NoScriptError)]
            if forgotten:
                again = connection.run_all([("EVAL", RENEW.text, *commands[i]) for i in forgotten])
                for i, answer in zip(forgotten, again, strict=True):
                    answers[i] = answer
            if all(unanswered(answer) for answer in answers):
                raise answers[0]
        return [self._renewed(answer, one.key) for answer, one in zip(answers, renewals, strict=True)]

    def release(self, release: Release) -> bool:
        """See `Store.release`."""
        return self.release_in_line(release, ()).ours

    def release_in_line(self, release: Release, homes: Sequence[str]) -> Released:
        """See `Lining.release_in_line`."""
        check_release(release)
        reply = self._ask(
            RELEASE,
            release.key,
            (release.grace_ms, release.again_ms, release.began),
            release.attempt,
            release.run_id,
            release.token,
            release.outcome,
            "\n".join(homes),
        )
        if isinstance(reply, int):
            return Released(bool(reply))
        return Released(bool(reply[0]), called_of(release.key, reply[1:]))

    @property
    def lines(self) -> bool:
        """See `Lining.lines`; in a cluster, a key and the index of a home may be on different servers."""
        return not isinstance(self._connections.topology, Cluster)

    def sent(self, key: str, run_id: str, call_no: int) -> bool:
        """See `Lining.sent`."""
        return bool(self._look(key, (), "sent", run_id, call_no)[0])

    def leave(self, key: str, run_id: str, homes: Sequence[str] = ()) -> tuple[Called, ...]:
        """See `Lining.leave`."""
        check_place(run_id)
        return called_of(key, self._look(key, homes, "leave", run_id)[1:])

    def drop(self, key: str, run_id: str) -> bool:
        """See `Lining.drop`."""
        check_place(run_id)
        return bool(self._look(key, (), "drop", run_id)[0])

    def sweep(self, homes: Sequence[str]) -> Swept:
        """See `Lining.sweep`."""
        called: list[Called] = []
        due_in: list[int] = []
        for home in homes:
            later_ms, *keys = self._ask(DUE, home, (), MAX_CALLED)
            due_in += [0] if keys else [later_ms] if later_ms >= 0 else []
            for key in keys:
                if len(called) < MAX_CALLED:
                    name = key.decode(errors="surrogateescape")
                    called += called_of(name, self._look(name, homes, "look")[1:])
        return Swept(tuple(called), min(due_in) / 1000 if due_in else None)

    def line_of(self, key: str, *, most: int = 20) -> LineLook:
        """See `Lining.line_of`."""
        return line_of(self._ask(WAITING, key, (), most))

    def _look(self, key: str, homes: Sequence[str], what: str, run_id: str = "", call_no: int = 0) -> Any:
        return self._ask(LOOK, key, (call_no,), "\n".join(homes), what, run_id)

    def queue(self, key: str, run_id: str, *, ttl_ms: int, running_too: bool) -> Busy | None:
        """See `Store.queue`."""
        check_place(run_id, ttl_ms)
        reply = self._ask(QUEUE, key, (ttl_ms, running_too), run_id)
        return busy_of(reply) if reply else None

    def unqueue(self, key: str, run_id: str) -> bool:
        """See `Store.unqueue`."""
        check_place(run_id)
        return bool(self._ask(UNQUEUE, key, (), run_id))

    def evict(self, key: str) -> bool:
        """See `Store.evict`."""
        return bool(self._ask(EVICT, key, ()))

    def peek(self, key: str) -> Look | None:
        """See `Store.peek`."""
        return look_of(self._ask(PEEK, key, ()))

    def listen(self, key: str, run_id: str, *, seconds: float) -> None:
        """See `Waking.listen`; blocks a connection, which other requests do not use."""
        if seconds <= TICK:  # the server would answer when that is over
            time.sleep(max(0.0, min(seconds, GLANCE)))
            return
        where = f"{key if '{' in key else f'{{{key}}}'}:{run_id}"
        seconds = min(seconds - TICK, LONGEST_WAIT)
        connection = self._connections.get("listening", LONGEST_WAIT + self.timeout)
        with self._connections.translating(connection, key):
            connection.run(("BLPOP", where, str(max(seconds, 0.001))))  # 0 would be for ever

    def close(self) -> None:
        """Close the connections of this process; the store may be used again afterwards."""
        self._connections.close()

    def _test_clock(self) -> int:
        """Microseconds of another clock; always 0 but in tests."""
        return 0

    def _numbers(self, *own: int) -> bytes:
        return numbers(round(self.remember * 1000), self._test_clock(), *own)

    def _renewal(self, one: Renewal) -> tuple[Word, ...]:
        own = self._numbers(one.ttl_ms, one.fence, one.started_ms, one.opens_ms, one.age_ms)
        return (own, one.attempt, one.run_id, one.token, one.holder)

    def _ask(self, script: Script, key: str, own: Sequence[int], *words: Word) -> Any:
        # Half the time for each of two tries, so that both together keep the caller's timeout.
        connection = self._connections.get("requests", self.timeout / 2)
        arguments = (self._numbers(*own), *words)
        try:
            try:
                return script.run(connection, key, arguments)
            except (driver.ConnectionError, driver.TimeoutError) as error:
                if permanent(error) or code_of(error) in PASSING:
                    raise
                connection.drop()
                return script.run(connection, key, arguments)
        except BaseException as error:  # noqa: BLE001 - `translating` without what that costs each request
            self._connections.fail(connection, error, key)

    def _renewed(self, answer: Any, key: str) -> Renewed | SingleflightError:
        if unanswered(answer):
            return translated(answer, self._connections.topology.address, key)
        return Renewed.LOST if isinstance(answer, Exception) else Renewed(answer.decode())
