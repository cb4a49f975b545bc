"""Ways to break the product, one at a time, in the processes under torture only; each must be found."""

from __future__ import annotations

import hashlib
import os
import random
import time
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from singleflight.errors import StoreUnavailable
from singleflight.lease import Granted, Lease
from singleflight.leases import errands, keeper
from singleflight.stores import record_rules as rules
from singleflight.stores.base import Renewed

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "TORTURE_MUTANT"
ANY = ("kill", "stop")
CUT = ("hold", "deaf", "stop", "refuse")


@dataclass(frozen=True)
class Mutant:
    """One way to be broken, and where it shows."""

    name: str
    what: str
    store: str
    faults: tuple[str, ...]
    apply: Callable[[], None]


MUTANTS: dict[str, Mutant] = {}


def mutant(store: str = "sqlite", faults: tuple[str, ...] = ANY) -> Callable[..., Callable[[], None]]:
    """Register a function that breaks something; its docstring says what."""

    def register(break_it: Callable[[], None]) -> Callable[[], None]:
        name = break_it.__name__.replace("_", "-")
        MUTANTS[name] = Mutant(name, str(break_it.__doc__), store, faults, break_it)
        return break_it

    return register


def apply() -> None:
    """Break what the environment names, if it names anything."""
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name].apply()


def _around(module: Any, name: str, change: Callable[..., Any]) -> None:
    """Put a function in the place of another, which it is given first."""
    original = getattr(module, name)
    setattr(module, name, lambda *args, **kwargs: change(original, *args, **kwargs))


# The rules, as stores use them that decide in Python.


@mutant()
def a_release_by_anybody() -> None:
    """A release does not ask whose lease it is."""
    _around(
        rules, "release",
        lambda old, found, asked, now: old(found, asked._replace(token=found.token) if found else asked, now),
    )  # fmt: skip


@mutant()
def a_renewal_by_anybody() -> None:
    """A renewal does not ask whose lease it is."""
    _around(
        rules, "renew",
        lambda old, found, asked, now, **more: old(
            found, asked._replace(token=found.token) if found else asked, now, **more
        ),
    )  # fmt: skip


@mutant()
def a_lease_ends_early() -> None:
    """A lease is taken for over when four fifths of it are."""
    rules.live = lambda record, now: record.held and record.expires_ms - record.ttl_ms / 5 > now


@mutant()
def a_lease_ends_late() -> None:
    """A lease is taken for alive half its length longer."""
    rules.live = lambda record, now: record.held and record.expires_ms + record.ttl_ms / 2 > now


@mutant(faults=())
def a_write_without_a_look() -> None:
    """A row is written whoever has written it meanwhile."""
    from sqlalchemy import update

    from singleflight.stores.sql import store, tables

    def write(old: Any, connection: Any, key: str, new: Any, revision: Any) -> None:
        if revision is None:
            return old(connection, key, new, None)
        values = {**new, "revision": random.getrandbits(60)}
        connection.execute(update(tables.leases).where(tables.leases.c.lease_key == key).values(values))
        return None

    _around(store, "write", write)


@mutant(faults=())
def a_fence_that_stays() -> None:
    """A grant gets the fence of the one before."""

    def claim(old: Any, found: Any, asked: Any, now: int, **more: Any) -> Any:
        changed, answer = old(found, asked, now, **more)
        if isinstance(answer, Granted) and found and found.fence:
            changed, answer = replace(changed, fence=found.fence), answer._replace(fence=found.fence)
        return changed, answer

    _around(rules, "claim", claim)


@mutant(faults=())
def a_fence_by_chance() -> None:
    """A fence is only different, not higher."""

    def claim(old: Any, found: Any, asked: Any, now: int, **more: Any) -> Any:
        changed, answer = old(found, asked, now, **more)
        if isinstance(answer, Granted):
            fence = random.randrange(1, 10**9)
            changed, answer = replace(changed, fence=fence), answer._replace(fence=fence)
        return changed, answer

    _around(rules, "claim", claim)


@mutant(faults=())
def no_window() -> None:
    """A window is no obstacle."""

    def claim(old: Any, found: Any, asked: Any, now: int, **more: Any) -> Any:
        return old(replace(found, opens_ms=0) if found else None, asked._replace(window_ms=0), now, **more)

    _around(rules, "claim", claim)


@mutant(faults=())
def a_short_window() -> None:
    """A window is a fifth shorter than was asked for."""
    _around(
        rules, "claim",
        lambda old, found, asked, now, **more: old(
            found, asked._replace(window_ms=asked.window_ms * 4 // 5), now, **more
        ),
    )  # fmt: skip


@mutant(faults=())
def an_end_is_forgotten() -> None:
    """The end of a run is not remembered."""

    def release(old: Any, found: Any, asked: Any, now: int) -> Any:
        changed, ours = old(found, asked, now)
        return replace(changed, runs=found.runs if found else ()), ours

    _around(rules, "release", release)


@mutant(faults=())
def only_success_is_an_end() -> None:
    """A run that failed may start again."""
    kinds = type(rules.Outcome.FAILED)
    kinds.final = property(lambda self: self == "finished")  # type: ignore[misc]


@mutant(faults=())
def grace_is_ignored() -> None:
    """A release with a grace leaves the lease as long as it was."""

    def release(old: Any, found: Any, asked: Any, now: int) -> Any:
        changed, ours = old(found, asked, now)
        return (replace(changed, expires_ms=found.expires_ms) if found and asked.grace_ms else changed), ours

    _around(rules, "release", release)


@mutant(faults=())
def grace_frees_at_once() -> None:
    """A release with a grace ends the lease while its body still cleans up."""
    _around(rules, "release", lambda old, found, asked, now: old(found, asked._replace(grace_ms=0), now))


@mutant(faults=())
def a_release_that_frees_nothing() -> None:
    """A release says that it has ended the lease, which lives on."""

    def release(old: Any, found: Any, asked: Any, now: int) -> Any:
        changed, ours = old(found, asked, now)
        return replace(changed, held=True) if found and found.held else changed, ours

    _around(rules, "release", release)


@mutant()
def a_take_over_untold() -> None:
    """Nobody is told that it took over from a holder that gave nothing back."""

    def claim(old: Any, found: Any, asked: Any, now: int, **more: Any) -> Any:
        changed, answer = old(found, asked, now, **more)
        return changed, answer._replace(took_over=False) if isinstance(answer, Granted) else answer

    _around(rules, "claim", claim)


@mutant(faults=())
def the_same_run_passes() -> None:
    """A second delivery of a run gets in while the first works."""

    def claim(old: Any, found: Any, asked: Any, now: int, **more: Any) -> Any:
        if found and found.run_id == asked.run_id and rules.live(found, now):
            found = replace(found, held=False)
        return old(found, asked, now, **more)

    _around(rules, "claim", claim)


# The scripts, as a Redis server runs them.


def _script(name: str, old: str, new: str) -> None:
    from singleflight.stores.redis import scripts

    script = getattr(scripts, name)
    if old not in script.text:
        raise LookupError(f"{old!r} is not in the script {name}: rewrite this mutant")
    text = script.text.replace(old, new)
    object.__setattr__(script, "text", text)
    object.__setattr__(script, "sha", hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@mutant("valkey")
def a_script_that_frees_for_anybody() -> None:
    """In Lua: a release does not ask whose lease it is."""
    _script("RELEASE", "not missing and r_token == ARGV[4]", "not missing")


@mutant("valkey", ("stop",))
def a_script_that_renews_for_anybody() -> None:
    """In Lua: a renewal does not ask whose lease it is."""
    _script("RENEW", "r_token ~= token or r_held == 0", "r_held == 0")


@mutant("valkey", ("hold",))
def a_renewal_revives() -> None:
    """In Lua: a renewal that comes late brings a lease back that was released."""
    _script("RENEW", "r_token ~= token or r_held == 0 or r_outcome ~= ''", "r_token ~= token")
    _script(
        "RENEW", "r_expires_ms, r_ttl_ms = now", "r_held, r_outcome = 1, ''\nr_expires_ms, r_ttl_ms = now"
    )


@mutant("valkey", ("deaf",))
def a_lost_reply_meets_itself() -> None:
    """In Lua: a claim that is sent again because its reply was lost is refused for its own lease."""
    _script("CLAIM", "if live and r_token == token then", "if false then")


@mutant("valkey", ("step",))
def a_clients_clock() -> None:
    """Leases in Redis go by the clock of whoever asks."""
    from singleflight.stores.redis.store import RedisStore

    RedisStore._test_clock = lambda _: round(time.time() * 1e6)  # type: ignore[method-assign]


@mutant("valkey")
def a_script_that_ends_leases_early() -> None:
    """In Lua: a lease is taken for over when three quarters of it are."""
    _script("CLAIM", "r_held > 0 and r_expires_ms > now", "r_held > 0 and r_expires_ms - r_ttl_ms / 4 > now")


@mutant("valkey", ())
def a_script_that_forgets_ends() -> None:
    """In Lua: the end of a run is not remembered."""
    _script("RELEASE", "mark(run, INFINITE, '1')", "")


# In the holder's process: when it trusts its lease.


@mutant("valkey", CUT)
def too_much_trust() -> None:
    """A holder trusts its lease for a ttl longer than the store keeps it."""
    # By its name the package gives the function.
    import_module("singleflight.lease").margin = lambda ttl: -ttl


@mutant("valkey", CUT)
def silence_is_consent() -> None:
    """A renewal that got no answer is taken for one that was granted."""

    def renew(old: Any, self: Any, group: Any) -> bool:
        sent = self._books.clock()
        answered = old(self, group)
        for kept in group:
            if kept.unanswered:
                kept.lease.renewed(sent)
        return bool(answered)

    original = errands.Errands.renew
    errands.Errands.renew = lambda self, group: renew(original, self, group)  # type: ignore[method-assign]


@mutant("valkey", ("stop", "hold"))
def a_loss_is_not_heard() -> None:
    """A holder that is told LOST goes on as if it had been renewed."""
    original = errands.Errands._note

    def note(self: Any, kept: Any, answer: Any, sent: float) -> None:
        original(self, kept, Renewed.RENEWED if answer is Renewed.LOST else answer, sent)

    errands.Errands._note = note  # type: ignore[method-assign]


@mutant("valkey", ("stop",))
def it_is_held_for_good() -> None:
    """A lease says that it is held until it is given back."""
    Lease.held = property(lambda self: not self._over)  # type: ignore[misc]


@mutant("valkey", ("hold", "slow", "stop"))
def trust_from_the_answer() -> None:
    """Trust begins when the answer comes, not when the request goes out, and without a margin."""

    def renewed(self: Any, sent: float) -> None:
        del sent
        self.trusted_until = max(self.trusted_until, self._keeper.clock() + self.ttl)

    Lease.renewed = renewed  # type: ignore[method-assign]


@mutant("valkey", ("stop", "step"))
def trust_by_the_wall_clock() -> None:
    """A holder goes by the clock on the wall, which steps."""
    keeper.process_keeper().clock = time.time


@mutant("valkey", ("hold", "deaf", "refuse"))
def an_outage_is_a_grant() -> None:
    """A store that gives no answer lets everybody in: what a lock does that fails open."""
    from singleflight.stores.redis.store import RedisStore

    original = RedisStore.claim

    def claim(self: Any, asked: Any) -> Any:
        try:
            return original(self, asked)
        except StoreUnavailable:
            now = round(time.time() * 1000)
            return Granted(now * 1000, False, now, 0)

    RedisStore.claim = claim  # type: ignore[method-assign]
