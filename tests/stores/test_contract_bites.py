"""The contract catches stores that break it: each way of being broken fails at the sentence it breaks."""

from __future__ import annotations

import inspect
import threading
from dataclasses import replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import pytest

from singleflight.lease import Busy, Granted, Reason
from singleflight.stores import record_rules as rules
from singleflight.stores.base import REMEMBER, Record
from singleflight.stores.memory import MemoryStore
from singleflight.testing import FakeClock, StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from singleflight.stores.base import Claim, Release, Renewal, Renewed


class _Contract(StoreContract):
    can_advance = True
    counts_refusals = True

    def lose(self, store: MemoryStore, key: str) -> None:
        store._records.pop(key, None)


_Contract.__test__ = False


class FreesForAnybody(MemoryStore):
    """Release does not ask whose lease it is."""

    def release(self, release: Release) -> bool:
        """End the lease in the name of whoever holds it."""
        found = self.peek(release.key)
        return super().release(release._replace(token=found.record.token) if found else release)


class ReadsThenWrites(MemoryStore):
    """A claim reads, decides, and writes later: what many hand-made locks do."""

    def claim(self, claim: Claim) -> Granted | Busy:
        """Decide outside the lock, giving others time to do the same."""
        now_us = self._now_us()
        kept, _ = self._records.get(claim.key, (None, 0))
        changed, answer = rules.claim(kept, claim, now_us // 1000, tick=now_us)
        self._dawdle()
        if changed is not None:
            life = rules.life_ends(changed, now_us // 1000, round(self.remember * 1000))
            self._records[claim.key] = (changed, life)
        return answer

    def _dawdle(self) -> None:
        # Long enough that the other threads read before this one writes; nothing waits for the result.
        threading.Event().wait(0.02)


class FenceStartsAnew(MemoryStore):
    """The fence is a plain counter in the record, so it restarts when the record is lost."""

    def claim(self, claim: Claim) -> Granted | Busy:
        """Count from one."""
        return self.change(claim.key, lambda found, now_us: rules.claim(found, claim, now_us // 1000, tick=1))


class RenewalSteals(MemoryStore):
    """A renewal does not ask whose lease it is."""

    def _renew(self, renewal: Renewal) -> Renewed:
        found = self.peek(renewal.key)
        return super()._renew(renewal._replace(token=found.record.token) if found else renewal)


class RenewalRevives(MemoryStore):
    """A renewal does not ask whether the lease was released."""

    def _renew(self, renewal: Renewal) -> Renewed:
        def decide(found: Record | None, now_us: int) -> tuple[Record | None, Renewed]:
            if found and found.token == renewal.token:
                found = replace(found, held=True, outcome="")
            return rules.renew(found, renewal, now_us // 1000, remember_ms=round(self.remember * 1000))

        return self.change(renewal.key, decide)


class FinishedAfterRunning(MemoryStore):
    """While somebody runs, a copy of an ended run is told RUNNING: it will come back, or wait."""

    def claim(self, claim: Claim) -> Granted | Busy:
        """Look at the lease before the runs."""
        answer = super().claim(claim)
        found = self.peek(claim.key)
        if (
            isinstance(answer, Busy)
            and answer.reason is Reason.FINISHED
            and found
            and rules.live(found.record, found.now_ms)
        ):
            return replace(answer, reason=Reason.RUNNING)
        return answer


class NoReplay(MemoryStore):
    """A claim whose reply was lost meets its own lease."""

    def claim(self, claim: Claim) -> Granted | Busy:
        """Never recognise the token."""
        found = self.peek(claim.key)
        if found and rules.live(found.record, found.now_ms) and found.record.token == claim.token:
            return super().claim(claim._replace(token="never seen"))
        return super().claim(claim)


class WindowIgnored(MemoryStore):
    """The lease is all there is."""

    def claim(self, claim: Claim) -> Granted | Busy:
        """Forget every window."""
        return super().claim(claim._replace(window_ms=0))


class WindowInBuckets(MemoryStore):
    """Windows begin at round times, so that two runs may start in one moment around a boundary."""

    def claim(self, claim: Claim) -> Granted | Busy:
        """End the window at the next multiple of its length."""
        answer = super().claim(claim)
        if isinstance(answer, Granted) and claim.window_ms:
            opens_ms = (answer.started_ms // claim.window_ms + 1) * claim.window_ms
            self.change(claim.key, lambda found, _: (replace(found or Record(), opens_ms=opens_ms), None))
        return answer


class LivesForEver(MemoryStore):
    """Records have no end."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock, remember=1e9)
        self.remember = REMEMBER

    def change(
        self, key: str, decide: Callable[[Record | None, int], tuple[Record | None, object]]
    ) -> object:
        """Keep the record."""
        answer = super().change(key, decide)
        if key in self._records:
            self._records[key] = (self._records[key][0], 1 << 60)
        return answer


class AddsOnTop(MemoryStore):
    """A renewal adds the ttl to what is left."""

    def _renew(self, renewal: Renewal) -> Renewed:
        def decide(found: Record | None, now_us: int) -> tuple[Record | None, Renewed]:
            changed, answer = rules.renew(found, renewal, now_us // 1000, remember_ms=10**9)
            if found and changed:
                ttl_ms = found.expires_ms - now_us // 1000 + renewal.ttl_ms
                changed = replace(changed, expires_ms=now_us // 1000 + ttl_ms, ttl_ms=ttl_ms)
            return changed, answer

        return self.change(renewal.key, decide)


class FoldsLetters(MemoryStore):
    """Keys that a database's collation takes for one are one record."""

    def change(
        self, key: str, decide: Callable[[Record | None, int], tuple[Record | None, object]]
    ) -> object:
        """Fold the key."""
        return super().change(key.casefold(), decide)


class WholeSeconds(MemoryStore):
    """Ends are cut to whole seconds, as a column of type timestamp does."""

    def change(
        self, key: str, decide: Callable[[Record | None, int], tuple[Record | None, object]]
    ) -> object:
        """Cut the end."""

        def cut(found: Record | None, now_us: int) -> tuple[Record | None, object]:
            changed, answer = decide(found, now_us)
            if changed is not None:
                changed = replace(changed, expires_ms=changed.expires_ms // 1000 * 1000)
            return changed, answer

        return super().change(key, cut)


class FreeOnceTidied(MemoryStore):
    """A lease is over when the store's own tidying has removed it, however late that is."""

    def claim(self, claim: Claim) -> Granted | Busy:
        """Take whatever lies there for alive."""
        found = self.peek(claim.key)
        if found and found.record.held and found.record.token != claim.token:
            return Busy(Reason.RUNNING, found.record.run_id, 1.0)
        return super().claim(claim)


class EndNeedsRecord(MemoryStore):
    """An update of a row that is gone changes nothing, and nobody looks."""

    def release(self, release: Release) -> bool:
        """Do without a record what an UPDATE does."""
        return super().release(release) if self.peek(release.key) else False


class TrustsWhoNeverBegan(MemoryStore):
    """A holder that never began its body is taken at its word, though an earlier one of its run may have."""

    def release(self, release: Release) -> bool:
        """Take the run for fresh."""

        def refresh(found: Record | None, _: int) -> tuple[Record | None, None]:
            return found and replace(found, fresh=True), None

        self.change(release.key, refresh)
        return super().release(release)


class AnswersByKey(MemoryStore):
    """Answers to many renewals come in the order of the keys, as a database returns rows."""

    def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Sort by what differs in the test, the key's end."""
        return super().renew(sorted(renewals, key=lambda renewal: renewal.key, reverse=True))


class ListsAPattern(MemoryStore):
    """The prefix is taken for a pattern, as SCAN and LIKE do."""

    def scan(self, prefix: str) -> Iterator[str]:
        """Let the characters of patterns be patterns."""
        return iter([key for key in self._records if fnmatch(key, f"{prefix}:*")])


class ListsTwice(MemoryStore):
    """A key that moves during the listing is listed again, as SCAN may do."""

    def scan(self, prefix: str) -> Iterator[str]:
        """Give every key twice."""
        keys = list(super().scan(prefix))
        return iter(keys + keys)


BROKEN = {
    FreesForAnybody: (
        "A release by a delivery that lost its lease neither frees nor shortens its successor's."
    ),
    ReadsThenWrites: "Of many threads that claim one free key at the same moment exactly one is granted.",
    FenceStartsAnew: "The fence grows over release, expiry, eviction and the loss of the record.",
    RenewalSteals: "A renewal after somebody else was granted is LOST and changes nothing.",
    RenewalRevives: "A renewal that arrives after the release is LOST and does not bring the lease back.",
    FinishedAfterRunning: (
        "A copy of an ended run is told FINISHED, not RUNNING, even while another run holds the lease."
    ),
    NoReplay: "A claim whose reply was lost is recognised by its token and gets the same grant again.",
    WindowIgnored: "Within the window after a start no other run starts, though the lease is free.",
    WindowInBuckets: "At the last instant of the window a run is refused, a millisecond later it is granted.",
    LivesForEver: "After every operation the record has an end: the latest of its times, plus `remember`.",
    AddsOnTop: "A renewal sets the remaining time to the ttl; nothing is added on top of what was left.",
    FoldsLetters: "Leases of different keys are independent, whatever characters keys and names have.",
    WholeSeconds: "A claim of a key that nobody knows is granted, from now on and for its ttl.",
    FreeOnceTidied: (
        "A lease that nobody renewed is free after its ttl, and its taker learns that it took over."
    ),
    EndNeedsRecord: "A release of a record that was lost still makes later copies of the run FINISHED.",
    TrustsWhoNeverBegan: (
        "A holder dies at work, and the next delivery of its run cannot start: the window stays."
    ),
    AnswersByKey: "Renewals sent together are answered one by one and in order.",
    ListsAPattern: "Keys of one prefix are listed once each; a longer or an odd prefix is another.",
    ListsTwice: "Keys of one prefix are listed once each; a longer or an odd prefix is another.",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_store_is_caught(broken: type[MemoryStore]) -> None:
    """Each deliberately broken store fails the sentence that it breaks."""
    assert BROKEN[broken] in _broken_sentences(broken)


def test_a_sound_store_is_not_caught() -> None:
    """The store that the broken ones are made of breaks no sentence, run in the same way."""
    assert _broken_sentences(MemoryStore) == []


def _broken_sentences(kind: type[MemoryStore]) -> list[str]:
    """Run every test of the contract on a fresh store each, and return what those that failed promise."""
    broken = []
    for name, test in inspect.getmembers(_Contract, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        clock = FakeClock()
        given = {"store": kind(clock=clock), "clock": clock, "key": "singleflight:key"}
        wanted = {arg: given[arg] for arg in inspect.signature(test).parameters if arg != "self"}
        try:
            test(_Contract(), **wanted)
        except (AssertionError, pytest.fail.Exception):
            broken.append(inspect.getdoc(test) or name)
        except pytest.skip.Exception as skipped:
            # It would skip the test of the contract too, which then could not fail.
            raise AssertionError(f"{name}: {skipped}") from skipped
    return broken
