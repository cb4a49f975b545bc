"""A small world around one line: workers of several homes, a broker, sweepers, and all that goes wrong.

It drives a store through `Lining` on a clock that moves only by its own steps, one step of one actor at a
time. Every step can be the last of its actor, and what it did not say, nobody knows. `World.drain` then lets
everybody do what is due, without further faults, and says what never comes to an end.
"""
# ruff: noqa: C901, D102, PLR0912 - one branch for each kind of step, whose names say what they do

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from singleflight.lease import Granted, Outcome, Reason
from singleflight.stores.base import Claim, Release, Renewal, Renewed
from singleflight.stores.lining import Arrival, Called, Kind, Standing, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from singleflight.testing import FakeClock

TTL = 3
LIFE = 3
COUNTDOWN = 4
LOOK = 3
REMEMBER = 40
DRAIN = 400


class Broken(AssertionError):
    """Raised when a history has done what none may."""


@dataclass(frozen=True)
class Config:
    """Who runs, who works, and how many faults of each kind there may be."""

    runs: str
    workers: str = "AAA"
    faults: dict[str, int] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    joins: dict[str, str] = field(default_factory=dict)
    listeners: str = ""
    counting: str = ""
    early: str = ""
    window: int = 0
    gone: str = ""
    unpublishable: str = ""


@dataclass(frozen=True)
class Message:
    """What the broker has."""

    run: str
    attempt: int = 0
    call_no: int = 0
    order: int = 0

    def encode(self) -> bytes:
        return json.dumps([self.run, self.attempt, self.order]).encode()


@dataclass
class Actor:
    """A delivery at a worker, a listener, or a sweeper with messages to publish."""

    name: str
    homes: tuple[str, ...]
    message: Message
    step: str
    token: str = ""
    trusted_until: int = 0
    held: bool = False
    grant: Granted | None = None
    owns: bool = True
    to_publish: list[Called] = field(default_factory=list)
    then: str = ""
    outcome: Outcome = Outcome.FINISHED
    began: bool = True


class World:
    """One history."""

    def __init__(self, store: Any, clock: FakeClock, config: Config, key: str) -> None:
        self.store, self.clock, self.config, self.key = store, clock, config, key
        self.prefix = key.partition(":")[0]
        self.now = self.tokens = 0
        self.queue = [Message(run) for run in config.runs if run not in config.listeners]
        self.delayed: list[tuple[int, Message]] = []
        self.at_work: list[Actor | None] = [None] * len(config.workers)
        self.listening = [self.actor(run, (), Message(run)) for run in config.listeners]
        self.sweeping: dict[str, Actor] = {}
        self.faults = dict(config.faults)
        self.begun: set[str] = set()
        self.ended: set[str] = set()
        self.cancelled: set[str] = set()
        self.dropped: set[str] = set()
        self.lost: set[str] = set()
        """Runs whose only message a fault has destroyed, as it may."""
        self.gone = False
        self.stepped = False

    def actor(self, name: str, homes: tuple[str, ...], message: Message) -> Actor:
        """Return a delivery that is about to claim."""
        self.tokens += 1
        return Actor(name, homes, message, "claim", token=f"token-{self.tokens}")

    def home(self, letter: str) -> str:
        """Return a home's name."""
        return f"{self.prefix}:home:{letter}:{self.key}"

    def home_of(self, run: str) -> str:
        """Return which home a run belongs to."""
        return self.config.homes.get(run, "A")

    # What can happen next.

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Name every step that somebody can do now."""
        for number, actor in enumerate(self.at_work):
            if actor is None:
                yield from self.arrivals(number)
            else:
                yield from self.steps_of(actor)
        for actor in self.listening:
            yield from self.steps_of(actor)
        for home in sorted(set(self.config.workers)):
            if self.is_gone(home):
                continue
            sweeper = self.sweeping.get(home)
            if sweeper is None:
                yield f"sweep {home}", lambda home=home: self.sweep(home)
            else:
                yield from self.steps_of(sweeper)
        yield from self.acts_of_god()
        yield "a second passes", lambda: self.tick(1)

    def is_gone(self, home: str) -> bool:
        """Say whether the workers of a home have gone for good."""
        return self.gone and home in self.config.gone

    def can(self, fault: str) -> bool:
        """Say whether there may be another fault of this kind."""
        return self.faults.get(fault, 0) > 0

    def arrivals(self, number: int) -> Iterator[tuple[str, Callable[[], None]]]:
        """Name the messages that an idle worker may get."""
        home = self.config.workers[number]
        if self.is_gone(home):
            return
        for message in dict.fromkeys(self.queue):
            if self.home_of(message.run) == home:
                label = f"w{number} takes {message.run}#{message.attempt} ({message.call_no and 'called'})"
                yield label, lambda message=message: self.take(number, message, home)

    def steps_of(self, actor: Actor) -> Iterator[tuple[str, Callable[[], None]]]:
        """Name what one actor may do, and what may be done to it."""
        name = f"{actor.name} {actor.message.run}#{actor.message.attempt}"
        if actor.step in ("claim", "park", "release"):
            yield f"{name}: {actor.step}", lambda: self.ask(actor)
            if self.can("reply"):
                yield f"{name}: {actor.step}, reply lost", lambda: self.ask(actor, lost=True)
        elif actor.step == "cancel":
            yield f"{name}: its flow is ended", lambda: self.cancel(actor)
        elif actor.step == "run":
            yield f"{name}: body ends", lambda: self.body_ends(actor, Outcome.FINISHED)
            if self.can("retry") and actor.owns:
                yield f"{name}: body is retried", lambda: self.body_ends(actor, Outcome.RETRYING)
            if self.can("giveback"):
                yield f"{name}: given back unbegun", lambda: self.give_back(actor)
        elif actor.step == "publish":
            called = actor.to_publish[0]
            if called.run_id in self.config.unpublishable:
                yield f"{name}: cannot publish {called.run_id}", lambda: self.next(actor)
            else:
                yield f"{name}: publishes {called.run_id}", lambda: self.publish(actor)
                if self.can("publish"):
                    yield f"{name}: fails to publish {called.run_id}", lambda: self.fail_to_publish(actor)
        elif actor.step == "sent":
            yield f"{name}: says sent {actor.to_publish[0].run_id}", lambda: self.say_sent(actor)
        elif actor.step == "ack":
            yield f"{name}: acknowledges", lambda: self.away(actor)
        if self.can("crash") and actor.step != "wait":
            yield f"{name}: killed at {actor.step}", lambda: self.kill(actor)
        if self.can("copy") and actor.owns and actor.homes and not actor.name.startswith("sweeper"):
            yield f"{name}: a copy is delivered", lambda: self.copy(actor)

    def acts_of_god(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Name what happens to nobody in particular."""
        if self.can("lose"):
            for message in dict.fromkeys(self.queue):
                if message.call_no:
                    yield f"the broker loses {message.run}", lambda message=message: self.lose(message)
        if self.can("drop"):
            for waiting in self.look().shown:
                if not waiting.ending and waiting.kind is not Kind.LISTENING:
                    yield f"drop {waiting.run_id}", lambda run=waiting.run_id: self.drop(run)
        if self.can("evict"):
            yield "evict", self.evict
        if self.can("step"):
            yield "the clock steps back", self.step_back
        if self.can("gone"):
            yield "workers go for good", self.go

    # What they do.

    def take(self, number: int, message: Message, home: str) -> None:
        self.queue.remove(message)
        actor = self.at_work[number] = self.actor(f"w{number}", (self.home(home),), message)
        actor.owns = message.run not in self.config.early
        joined = self.config.joins.get(message.run)
        if joined in self.ended:
            # Its result is there: the run ends with it, without a lease.
            actor.step, actor.outcome = "release", Outcome.FINISHED

    def ask(self, actor: Actor, *, lost: bool = False) -> None:
        """Ask the store; of a lost reply nothing is known, and a claim is made again."""
        if lost:
            self.faults["reply"] -= 1
        message, step = actor.message, actor.step
        if step == "release":
            called = self.release(actor)
            self.go_on(actor, () if lost else called, "ack")
            return
        before, again = self.look(), self.live_token() == actor.token
        claim = Claim(
            *(self.key, message.run, message.attempt, actor.token, TTL * 1000), self.config.window * 1000
        )
        arrival = Arrival(message.call_no, message.order, actor.homes)
        if step == "claim":
            answer, called, order = self.store.claim_in_line(claim, arrival)
        else:
            answer, called, order = self.store.park(claim, arrival, self.wait_of(message))
        if isinstance(answer, Granted) and not again:
            self.judge(actor, before)
        if lost:
            return
        actor.message = replace(message, order=order or message.order)
        if isinstance(answer, Granted):
            actor.held, actor.grant, actor.trusted_until = True, answer, self.now + TTL
            self.go_on(actor, called, "run")
        elif answer.reason is Reason.FINISHED:
            self.go_on(actor, called, "ack")
        elif answer.reason is Reason.ENDING:
            self.go_on(actor, called, "cancel")
        elif step == "claim":
            self.go_on(actor, called, "park")
        elif message.run in self.config.listeners:
            self.go_on(actor, called, "wait")
        else:
            if message.run in self.config.counting:
                self.delayed.append((self.now + COUNTDOWN, replace(actor.message, call_no=0)))
                # What the broker has already, a crash before the acknowledgement brings twice.
            self.go_on(actor, called, "ack")

    def wait_of(self, message: Message) -> Wait:
        """Return how a run waits."""
        if message.run in self.config.listeners:
            return Wait(Kind.LISTENING, life_ms=LIFE * 1000)
        if message.run in self.config.counting:
            return Wait(Kind.COUNTING, life_ms=(COUNTDOWN + 1) * 1000)
        home, kept = self.home(self.home_of(message.run)), message.encode()
        joined = self.config.joins.get(message.run)
        if joined and self.live_token() and self.store.peek(self.key).record.run_id == joined:
            return Wait(Kind.JOINING, home, kept, life_ms=LOOK * 1000)
        return Wait(Kind.PARKED, home, kept)

    def release(self, actor: Actor) -> tuple[Called, ...]:
        message = actor.message
        asked = Release(self.key, message.run, message.attempt, actor.token, actor.outcome, began=actor.began)
        actor.held = False
        if actor.outcome.final:
            (self.cancelled if actor.outcome is Outcome.CANCELLED else self.ended).add(message.run)
        called: tuple[Called, ...] = self.store.release_in_line(asked, actor.homes).called
        return called

    def body_ends(self, actor: Actor, outcome: Outcome) -> None:
        actor.outcome, actor.step = outcome, "release"
        if outcome is Outcome.RETRYING:
            self.faults["retry"] -= 1
            self.queue.append(Message(actor.message.run, actor.message.attempt + 1))

    def give_back(self, actor: Actor) -> None:
        """The worker ends before the body starts: its message goes back to the broker."""
        self.faults["giveback"] -= 1
        actor.outcome, actor.step, actor.began = Outcome.REQUEUED, "release", False
        if actor.owns and actor.homes:
            self.queue.append(actor.message)
            actor.owns = False
        else:
            self.lost.add(actor.message.run)

    def cancel(self, actor: Actor) -> None:
        self.cancelled.add(actor.message.run)
        actor.outcome, actor.step = Outcome.CANCELLED, "release"

    def go_on(self, actor: Actor, called: tuple[Called, ...], then: str) -> None:
        actor.to_publish, actor.then = list(called), then
        actor.step = "publish" if called else then

    def publish(self, actor: Actor) -> None:
        called = actor.to_publish[0]
        run, attempt, _ = json.loads(called.message)
        self.queue.append(Message(run, attempt, called.call_no, called.order))
        actor.step = "sent"

    def fail_to_publish(self, actor: Actor) -> None:
        self.faults["publish"] -= 1
        self.next(actor)

    def say_sent(self, actor: Actor) -> None:
        called = actor.to_publish[0]
        self.store.sent(self.key, called.run_id, called.call_no)
        self.next(actor)

    def next(self, actor: Actor) -> None:
        actor.to_publish.pop(0)
        actor.step = "publish" if actor.to_publish else actor.then
        if actor.step == "away":
            self.away(actor)

    def away(self, actor: Actor) -> None:
        """The actor has nothing more to do."""
        self.at_work = [None if one is actor else one for one in self.at_work]
        self.listening = [one for one in self.listening if one is not actor]
        self.sweeping = {home: one for home, one in self.sweeping.items() if one is not actor}

    def kill(self, actor: Actor) -> None:
        self.faults["crash"] -= 1
        if actor.name.startswith("sweeper"):
            pass
        elif not actor.homes or actor.message.run in self.config.early:
            self.lost.add(actor.message.run)
        elif actor.owns:
            self.queue.append(actor.message)
        self.away(actor)

    def copy(self, actor: Actor) -> None:
        """The broker thinks that a delivery is dead, and makes another."""
        self.faults["copy"] -= 1
        actor.owns = False
        self.queue.append(actor.message)

    def lose(self, message: Message) -> None:
        self.faults["lose"] -= 1
        self.queue.remove(message)
        self.lost.add(message.run)

    def drop(self, run: str) -> None:
        self.faults["drop"] -= 1
        if self.store.drop(self.key, run):
            self.dropped.add(run)

    def evict(self) -> None:
        self.faults["evict"] -= 1
        self.store.evict(self.key)
        for actor in self.everybody():
            actor.trusted_until = 0

    def step_back(self) -> None:
        self.faults["step"] -= 1
        self.clock.step_back(1000)
        self.stepped = True

    def go(self) -> None:
        self.faults["gone"] -= 1
        self.gone = True
        for number, home in enumerate(self.config.workers):
            if home in self.config.gone:
                self.at_work[number] = None
        self.sweeping = {home: one for home, one in self.sweeping.items() if home not in self.config.gone}
        self.lost |= {run for run in self.config.runs if self.home_of(run) in self.config.gone}

    def sweep(self, home: str) -> None:
        swept = self.store.sweep((self.home(home),))
        if swept.called:
            sweeper = Actor(f"sweeper {home}", (self.home(home),), Message("-"), "")
            self.go_on(sweeper, swept.called, "away")
            self.sweeping[home] = sweeper

    def everybody(self) -> list[Actor]:
        """Return all who live."""
        return [actor for actor in self.at_work if actor] + self.listening

    def tick(self, seconds: int) -> None:
        """Let time pass; holders renew, listeners look again, countdowns end."""
        self.clock.advance(seconds)
        self.now += seconds
        for actor in self.everybody():
            if actor.held and actor.grant is not None:
                message = actor.message
                renewal = Renewal(
                    *(self.key, message.run, message.attempt, actor.token, actor.grant.fence, TTL * 1000)
                )
                if self.store.renew([renewal]) == [Renewed.RENEWED]:
                    actor.trusted_until = self.now + TTL
            if actor.step == "wait":
                actor.step = "claim"
        back = [message for due, message in self.delayed if due <= self.now]
        self.delayed = [one for one in self.delayed if one[0] > self.now]
        self.queue += back

    def live_token(self) -> str:
        """Return the token that holds the key, if one does."""
        look = self.store.peek(self.key)
        live = look is not None and look.record.held and look.record.expires_ms > look.now_ms
        return look.record.token if live else ""

    def look(self) -> Any:
        return self.store.line_of(self.key, most=100)

    # What must hold.

    def judge(self, actor: Actor, before: Any) -> None:
        """Hold a grant against what the world knows, and the line as it was before it."""
        message = actor.message
        others = [one for one in self.everybody() if one is not actor and one.trusted_until > self.now]
        if any(one.held for one in others):
            raise Broken("OVERLAP: two hold the key")
        if message.run in self.ended:
            raise Broken("a FINISHED run starts")
        if message.run in self.dropped:
            raise Broken("a DROPPED run starts")
        if self.stepped:
            return
        own = next((one for one in before.shown if one.run_id == message.run), None)
        order = own.order if own else message.order or 1 << 60
        resumed = message.attempt > 0 or message.run in self.begun
        self.begun.add(message.run)
        for one in before.shown:
            waits = one.standing is Standing.READY and not one.calls and one.order < order
            if waits and not (self.config.window and resumed and not one.begun) and not self.over(one):
                raise Broken("PASSED: one was ready, ahead, and never called")

    def over(self, waiting: Any) -> bool:
        """Say whether somebody only seems to wait: a listener that is dead."""
        return waiting.kind in (Kind.LISTENING, Kind.COUNTING)

    def drain(self) -> None:
        """Let everything that is due happen, and insist that all comes to an end."""
        self.faults = {}
        deadline = self.now + DRAIN
        while self.now < deadline:
            for _ in range(300):
                sweeps = [do for label, do in self.steps() if label.startswith("sweep")]
                others = [do for label, do in self.steps() if not label.startswith(("sweep ", "a second"))]
                if others:
                    others[0]()
                    continue
                before = dict(self.sweeping)
                for do in sweeps:
                    do()
                if self.sweeping == before:
                    break
            else:
                raise Broken("HOT: there is always something to do")
            if self.is_over():
                return
            self.tick(1 if self.everybody() else 2)
        missing = self.missing()
        if any(one.run_id in missing for one in self.look().shown) or self.queue or self.everybody():
            raise Broken(f"STUCK: {sorted(missing)} never come to an end; {self.look()}")
        if missing:
            raise Broken(f"LOST: {sorted(missing)} neither ended nor wait")
        raise Broken(f"GHOST: {self.look()} stays for ever")

    def missing(self) -> set[str]:
        """Return runs that must come to an end and have not."""
        return (
            set(self.config.runs) - self.ended - self.cancelled - self.lost - set(self.config.unpublishable)
        )

    def is_over(self) -> bool:
        """Say whether all has come to an end, and nobody is left in the line who need not be."""
        if self.missing() or any(self.everybody()):
            return False
        excused = set(self.config.unpublishable) | {
            run for run in self.config.runs if self.is_gone(self.home_of(run))
        }
        return all(one.run_id in excused for one in self.look().shown)
