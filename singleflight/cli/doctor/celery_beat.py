"""What `doctor -A app` can know of beats: its settings, what they left in the stores, this host's processes.

A beat sends no heartbeat, so nobody can count those of other hosts. One of ours leaves each tick in the
store; one of another kind gives itself away by ticks that are not there, or by redbeat's lock.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.schedules import maybe_schedule

from singleflight.celery.beat_pauses import pause_of
from singleflight.celery.schedule_times import last_of
from singleflight.celery.ticks import tick_key
from singleflight.cli.doctor.findings import Finding, Level
from singleflight.cli.operators.entry import brief
from singleflight.errors import SingleflightError
from singleflight.stores.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from singleflight.celery.runtime import Runtime
    from singleflight.stores.base import Store

OURS = ("singleflight", "singleflight.celery.beat:SingleflightScheduler")
BUILT_IN = "celery.beat:PersistentScheduler"
REMEDY = "start every beat with --scheduler singleflight, or set beat_scheduler = 'singleflight'"

LATE = 60.0
"""Seconds after which a tick that nobody has sent is missed: beats look at least every few seconds."""

PROCESSES = Path("/proc")


def of_beat(app: Any, store: Store | None) -> Iterator[Finding]:
    """Look for beats that do not share their ticks."""
    entries: dict[str, Any] = app.conf.beat_schedule or {}
    scheduler = str(app.conf.beat_scheduler)
    yield from _of_setting(scheduler, list(entries))
    if store is not None:
        yield from _of_ticks(app, store, entries, shares=scheduler in OURS)
    yield from _of_redbeat(app, shares=scheduler in OURS)
    for pid, used in foreign_beats(PROCESSES, scheduler):
        what = f"process {pid} of this host is a beat with --scheduler {used}, which sends ticks of its own"
        yield Finding(Level.WARNING, what, f"if it is this app's: {REMEDY}")


def _of_setting(scheduler: str, entries: list[str]) -> Iterator[Finding]:
    if scheduler in OURS:
        yield Finding(Level.OK, "beat shares its ticks: each is sent once, however many replicas there are")
    elif entries or scheduler != BUILT_IN:
        what = f"every tick of {_few(entries)}" if entries else "every tick"
        # Whatever it is, ours can wrap it.
        keep = "" if scheduler == BUILT_IN else f", and singleflight_beat_scheduler = {scheduler!r}"
        yield Finding(
            Level.WARNING,
            f"beat_scheduler is {scheduler}: unless it is started with --scheduler singleflight, each "
            f"replica of beat sends {what}",
            f"set beat_scheduler = 'singleflight'{keep}",
        )


def _of_ticks(app: Any, store: Store, entries: dict[str, Any], *, shares: bool) -> Iterator[Finding]:
    """Compare the schedule with the ticks that beats of ours have left in the store."""
    runtime: Runtime = app.singleflight
    unknown: list[str] = []
    late: list[str] = []
    last: list[tuple[datetime, str, View]] = []
    with suppress(SingleflightError):  # has been said
        for name, entry in entries.items():
            view = View(store.peek(tick_key(runtime.prefix, name)))
            known = (
                last_of(name, view.run_id, view.started, ended=view.over(view.run_id))
                if view.run_id
                else None
            )
            if known is None or not known.sent or known.at is None:
                unknown.append(name)
                continue
            sent = known.at
            overdue = _overdue(app, entry, sent)
            if overdue > LATE and pause_of(view) is None:
                late.append(f"{name} (overdue by {brief(overdue)})")
            last.append((sent, name, view))
    if last:
        sent, name, view = max(last, key=lambda one: one[0])
        yield Finding(Level.OK, f"the last tick in the store is {name}'s, sent {_by_whom(view)}")
    if unknown:
        what = f"no beat that shares its ticks has sent {_few(unknown)} yet"
        level, remedy = (Level.OK, "") if shares else (Level.WARNING, REMEDY)
        yield Finding(level, f"{what}: not due yet, no beat runs, or one of another kind does", remedy)
    if late:
        what = f"no beat that shares its ticks sends {_few(late)}"
        yield Finding(Level.WARNING, f"{what}: none runs, or one of another kind does", REMEDY)


def _overdue(app: Any, entry: dict[str, Any], sent: datetime) -> float:
    schedule: Any = maybe_schedule(entry["schedule"], app=app)
    try:
        remaining: float = schedule.remaining_estimate(schedule.maybe_make_aware(sent)).total_seconds()
    except Exception:  # noqa: BLE001 - a schedule of the user's own may estimate nothing, or fail
        return 0.0
    return -remaining


def _by_whom(view: View) -> str:
    holder, ago = view.holder, f"{brief(view.started_ago)} ago"
    return f"{ago} by {holder.host} pid {holder.pid}" if holder else ago


def _of_redbeat(app: Any, *, shares: bool) -> Iterator[Finding]:
    """Look for the lock that a RedBeat scheduler holds, so that the others of its kind stand by."""
    url = str(app.conf.get("redbeat_redis_url") or app.conf.broker_url or "")
    if not url.startswith(("redis://", "rediss://", "valkey://", "unix://")):
        return
    prefix = str(app.conf.get("redbeat_key_prefix") or "redbeat:")
    lock = str(app.conf.get("redbeat_lock_key") or f"{prefix}:lock")
    lock = lock if lock.startswith(prefix) else prefix + lock
    from redis import Redis, RedisError  # noqa: PLC0415 - such a broker has needed it before

    try:
        with Redis.from_url(url.replace("valkey://", "redis://", 1), socket_timeout=2) as client:
            held = bool(client.exists(lock))
    except (RedisError, ValueError, OSError):
        return  # the broker is not ours to judge, and a user without this right sees no lock
    if held and shares:
        yield Finding(
            Level.WARNING,
            f"redbeat's lock {lock} is held: one beat sends all ticks, and the others stand by",
            "set redbeat_lock_key = None, so that all replicas tick; each tick is still sent once",
        )
    elif held:
        yield Finding(
            Level.WARNING,
            f"redbeat's lock {lock} is held: a RedBeat beat runs, which does not share its ticks",
            "set beat_scheduler = 'singleflight', singleflight_beat_scheduler = 'redbeat.RedBeatScheduler' "
            "and redbeat_lock_key = None",
        )


def foreign_beats(processes: Path, configured: str) -> Iterator[tuple[int, str]]:
    """Go through this host's beats of another kind (Linux): process id and scheduler."""
    for place in sorted(processes.glob("[0-9]*/cmdline")):
        with suppress(OSError):
            words = place.read_bytes().decode(errors="replace").split("\0")
            used = scheduler_of(words, configured)
            if used is not None and used not in OURS:
                yield int(place.parent.name), used


def scheduler_of(words: Sequence[str], configured: str) -> str | None:
    """Return the scheduler of a command line that is a beat's, else None; pure."""
    program, *more = [Path(word).name for word in words[:3]]
    if program != "celery" and not (program.startswith("py") and "celery" in more):
        return None
    inside = "worker" in words and any(word in ("-B", "--beat") for word in words)
    if "beat" not in words and not inside:
        return None
    used = configured
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("-S", "--scheduler"):
            used = following
        elif word.startswith("--scheduler="):
            used = word.partition("=")[2]
        elif word.startswith("-S") and not word.startswith("--"):
            used = word[2:]
    return used


def _few(names: list[str]) -> str:
    """Return some names, and how many more there are."""
    shown = ", ".join(sorted(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"  # noqa: PLR2004 - as above
