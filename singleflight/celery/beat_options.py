"""What an entry of beat's schedule may ask for besides its schedule, checked when beat starts; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from singleflight.errors import ConfigurationError

if TYPE_CHECKING:
    from singleflight.celery.runtime import Runtime

CatchUp = Literal["none", "latest", "all"]

IN_ENTRY = "singleflight"
"""The key of an entry's own ``options`` in ``beat_schedule`` that holds these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryOptions:
    """The options of one entry; durations in seconds."""

    catch_up: CatchUp = "latest"
    """Of the planned times that no beat has sent: none, the latest, or each."""
    catch_up_window: float | None = None
    """Planned times that are longer ago are left out; None: however long."""
    jitter: float = 0.0
    """Each planned time is sent this much later at most, all replicas agreeing by how much."""

    pause_on_failure: bool = False
    """Whether the entry is paused when a run of it fails."""

    @property
    def by_plan(self) -> bool:
        """Whether each tick stands for one planned time, and not for the moment at which it was found due."""
        return bool(self.jitter or self.catch_up == "all" or self.catch_up_window is not None)


class BeatOptions:
    """The options of an app's entries, from its settings and from ``beat_schedule``."""

    def __init__(self, runtime: Runtime) -> None:
        """Read the settings.

        Raises:
            ConfigurationError: for a value that cannot be, naming it and what to write.
        """
        common = {name: runtime.setting(f"beat_{name}") for name in ("catch_up", "catch_up_window")}
        self._common = {name: value for name, value in common.items() if value is not None}
        given = runtime.setting("beat_entries", {})
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"singleflight_beat_entries={given!r} is no dict of names and options; "
                "write {'nightly': {'jitter': 30}}"
            )
        self._by_name: dict[str, Any] = dict(given)
        self._known: dict[str, tuple[Any, EntryOptions]] = {}
        self._usual = read("singleflight_beat", self._common)
        self._configured: dict[str, Any] = runtime.app.conf.beat_schedule or {}
        for name in self._by_name:
            self._of(name, {})

    @property
    def names(self) -> set[str]:
        """The entries that the settings name."""
        return set(self._by_name)

    @property
    def pausing(self) -> set[str]:
        """The entries that are paused when a run of theirs fails, as far as the configuration tells."""
        own = {name: (one.get("options") or {}).get(IN_ENTRY, {}) for name, one in self._configured.items()}
        return {name for name in {*own, *self._by_name} if self._of(name, own.get(name, {})).pause_on_failure}

    def of(self, entry: Any) -> EntryOptions:
        """Return the options of an entry; what the settings say goes before what ``beat_schedule`` does.

        Raises:
            ConfigurationError: as above.
        """
        own = (entry.options or {}).get(IN_ENTRY)
        if own is None and entry.name not in self._by_name:
            return self._usual
        before, options = self._known.get(entry.name, (self, self._usual))
        if before != own:
            options = self._of(entry.name, own or {})
            self._known[entry.name] = own, options
        return options

    def _of(self, name: str, own: Any) -> EntryOptions:
        by_name = self._by_name.get(name, {})
        for given in (own, by_name):
            if not isinstance(given, Mapping):
                raise ConfigurationError(f"beat entry {name}: {given!r} is no dict of options")
        return read(f"beat entry {name}", {**self._common, **own, **by_name})


def read(whose: str, given: Mapping[str, Any]) -> EntryOptions:
    """Return options as they were written down.

    Raises:
        ConfigurationError: for one that there is not, or a value that cannot be.
    """
    known = [field.name for field in fields(EntryOptions)]
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{whose}: {name!r} is no option; there are {', '.join(known)}")
    options = dict(given)
    for name in ("catch_up_window", "jitter"):
        if name in options:
            options[name] = _seconds(f"{whose}: {name}", options[name])
    if not isinstance(options.get("pause_on_failure", False), bool):
        raise ConfigurationError(f"{whose}: pause_on_failure is True or False")
    found = EntryOptions(**options)
    if found.catch_up not in get_args(CatchUp):
        raise ConfigurationError(
            f"{whose}: catch_up={found.catch_up!r} is unknown; write 'none', 'latest' or 'all'"
        )
    if found.catch_up == "all" and found.catch_up_window is None:
        raise ConfigurationError(
            f"{whose}: catch_up='all' needs a catch_up_window, such as 86400: without one, beats that were "
            "away for a month would send all of it"
        )
    return found


def _seconds(what: str, value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise ConfigurationError(f"{what}={value!r} is no duration; write seconds or a timedelta")
    return float(seconds)
