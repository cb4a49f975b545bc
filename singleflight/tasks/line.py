"""The line, as tasks wait in it: who wants it, and the sweep that calls where nobody else does."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from singleflight.errors import ConfigurationError, SingleflightError
from singleflight.log import logger

if TYPE_CHECKING:
    from singleflight.leases.claiming import Leases

WAYS = ("auto", "line", "countdown")
BUILT_IN = "countdown"
"""How those wait who are refused, where nobody says it."""

PORT = 6379
"""Redis's, where a URL names none."""

SQL = ("sqlite", "postgresql", "mysql", "mariadb")

LONGEST = 1.0
"""Seconds between two looks at most: what others have done since the last one may be due earlier."""

REST = 5.0
"""Seconds until the next look after one that went wrong."""


def way_to_wait(value: object, name: str = "waiting") -> str:
    """Return a setting, which is called ``name`` where it is written.

    Raises:
        ConfigurationError: for anything that is none.
    """
    if value is None:
        return BUILT_IN
    if value not in WAYS:
        raise ConfigurationError(f"{name}={value!r} is unknown; write one of {', '.join(WAYS)}")
    return str(value)


def waits_in_line(way: str, named: object, broker: tuple[str | None, int | None]) -> bool:
    """Say whether refused runs wait in the line of the store.

    By themselves only where park and acknowledgement go to one server, which keeps or loses both, or where
    the store is a database.

    Args:
        way: what `way_to_wait` has returned.
        named: the store as it was named, None if it is the broker's.
        broker: the broker's host and port.
    """
    if way != "auto" or named is None:
        return way != "countdown"
    if not isinstance(named, str):
        return False
    scheme = named.partition(":")[0].partition("+")[0]
    if scheme in SQL:
        return True
    try:
        place = urlsplit(named).hostname, urlsplit(named).port or PORT
    except ValueError:
        return False  # what cannot be read is refused where the store is opened
    return place == (broker[0], broker[1] or PORT)


class Sweep:
    """A thread that publishes what is due in the lines of one store, where whoever should have has died."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="singleflight-sweep", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self, patience: float = 1.0) -> None:
        """Look no more; a look that is under way is waited for."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(patience)

    def look(self) -> float:
        """Call whoever is due, and return in how many seconds to look again."""
        leases = self._leases
        if leases.calling is None or not leases.lines:
            return REST
        swept = leases.breaker.ask(leases.calling.sweep)
        leases.calling.publish(swept.called)
        return LONGEST if swept.due_in is None else min(LONGEST, swept.due_in)

    def _run(self) -> None:
        pause, told = 0.0, False
        while not self._over.wait(pause * random.uniform(0.75, 1)):  # noqa: S311 - spreads the workers' looks
            try:
                pause, told = self.look(), False
            except SingleflightError as error:
                if not told:
                    logger.warning("singleflight: nobody is called who waits in line: %s", error)
                pause, told = REST, True
            except Exception:  # noqa: BLE001 - whatever it was, those who wait need the next look
                logger.exception("singleflight: the sweep goes on after an unexpected error")
                pause = REST
