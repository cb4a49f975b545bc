"""One store as operators reach it, and which key they mean."""

from __future__ import annotations

import inspect
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from singleflight.cli.address import check_name, locate
from singleflight.cli.operators.entry import Entry, named
from singleflight.cli.output import Failure, keep_secret
from singleflight.cli.settings import store_url
from singleflight.errors import ConfigurationError
from singleflight.events import short_key
from singleflight.key_rules import KeyRule
from singleflight.keys import lease_key, readable
from singleflight.stores import open_store
from singleflight.stores.optional import Listing
from singleflight.stores.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from singleflight.stores.base import Store

TIMEOUT = 5.0
"""Seconds for one request: an operator would rather wait for a slow store than be told that it is slow."""

BESIDE_TICKS = (":beat:clock", ":beat:backfill")

AT_ONCE = 8
"""How many keys are looked at at the same time."""


@dataclass(frozen=True, slots=True)
class Access:
    """A store and the prefix of its keys.

    ``rule`` finds the key rule of a task by its name, where an app is there to ask; None otherwise.
    """

    store: Store
    prefix: str
    rule: Callable[[str], KeyRule | None] = lambda _: None

    def keys(self) -> Iterator[str]:
        """Go through all keys of leases.

        Raises:
            Failure: if this store cannot list its keys.
        """
        if not isinstance(self.store, Listing):
            raise Failure("this store cannot list its keys; name one: singleflight show URL NAME")
        # Of what beats keep, and what backfills do, only the entries' ticks say something to people.
        keys = (key for key in self.store.scan(self.prefix) if short_key(key) != key)
        return (key for key in keys if not key.rsplit(":", 2)[0].endswith(BESIDE_TICKS))

    def entries(self) -> Iterator[Entry]:
        """Look at all keys; one that has gone meanwhile is left out."""
        return self._entries(self.keys())

    def entry(self, key: str) -> Entry | None:
        """Look at one key; None if the store knows nothing of it."""
        look = self.store.peek(key)
        counted = getattr(self.store, "counts_refusals", True)
        return None if look is None else Entry(key, View(look), counted=counted)

    def related(self, wanted: str) -> list[Entry]:
        """Return the keys of a task, whatever its arguments; if there are none, those that know a run."""
        if not isinstance(self.store, Listing):
            return []
        keys = list(self.keys())
        name = readable(wanted)
        of_task = [key for key in keys if short_key(key).rpartition(":")[0] == name]
        entries = self._entries(of_task or keys)
        return [entry for entry in entries if of_task or entry.knows(wanted)]

    def key(self, words: Sequence[str]) -> str:
        """Return the key that words name: a key, whole or as `ls` prints it, a lease's name, or a task.

        A task may be followed by the arguments that make its key, as a JSON object.

        Raises:
            Failure: if they name none, or several.
        """
        name, *arguments = words
        if arguments:
            return self._task_key(name, arguments)
        if short_key(name) != name:
            return name
        task, _, digits = name.rpartition(":")
        if task and len(digits) == 8 and isinstance(self.store, Listing):  # noqa: PLR2004 - as `short_key` cuts
            found = [key for key in self.keys() if named(key) == name]
            if len(found) > 1:
                raise Failure(f"{name} means {len(found)} keys: {', '.join(found)}; give a whole one")
            if found:
                return found[0]
        return lease_key(self.prefix, name)

    def _entries(self, keys: Iterable[str]) -> Iterator[Entry]:
        # Several at a time, because each look may travel far.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from filter(None, pool.map(self.entry, keys))

    def _task_key(self, task: str, arguments: Sequence[str]) -> str:
        try:
            (text,) = arguments
            given = json.loads(text)
            if not isinstance(given, dict):
                raise TypeError  # noqa: TRY301 - one sentence for all that is wrong here
        except (ValueError, TypeError):
            raise Failure(f"""give a task's arguments as one JSON object: {task} '{{"id": 7}}'""") from None
        rule = self.rule(task) or _rule_by_names(self.prefix, task, given)
        key = rule.key((), given)
        if key is None:
            raise Failure(f"task {task} cannot be called with {text}")
        return key


def open_store_of(words: Sequence[str], url_file: Path | None, **options: Any) -> tuple[Store, list[str]]:
    """Open the store that the first word, a file or the environment names; return it and the other words.

    Raises:
        Failure: if none of them does.
    """
    first, *rest = words or ("",)
    keep_secret(first)
    check_name(first)
    options = {"timeout": TIMEOUT, **options}
    if "://" in first:
        return open_store(first, **options), rest
    url = store_url(first, url_file)
    if url is None:
        raise Failure("which store? write its URL, set SINGLEFLIGHT_URL, or give --url-file", 2)
    return open_store(url, **options), list(words)


def open_access(words: Sequence[str], url_file: Path | None, prefix: str) -> tuple[Access, list[str]]:
    """Do as `open_store_of`, with the prefix of its keys."""
    store, rest = open_store_of(words, url_file)
    return Access(store, prefix), rest


def open_lease(words: Sequence[str], url_file: Path | None, prefix: str) -> tuple[Access, str]:
    """Open a store and find the key that is meant; a URL as `run` takes it has both.

    Raises:
        Failure: if there is no name.
    """
    if len(words) == 1 and "://" in words[0]:
        keep_secret(words[0])
        try:
            address = locate(words[0], None)
        except ConfigurationError as error:
            raise Failure(f"{error}, or write it after the URL", 2) from None
        return Access(open_store(address.store, timeout=TIMEOUT), prefix), lease_key(prefix, address.name)
    access, rest = open_access(words, url_file, prefix)
    if not rest:
        raise Failure("which one? write its name; `singleflight ls` lists them", 2)
    return access, access.key(rest)


def wanted_by(words: Sequence[str]) -> str:
    """Return the word that may also be a task or a run's id; empty if a task's arguments were given."""
    names = words[1:] if "://" in words[0] else words
    if not names:
        return locate(words[0], None).name
    return names[0] if len(names) == 1 else ""


def who_asks() -> str:
    """Return who uses this command, for the log."""
    return os.environ.get("SUDO_USER") or os.environ.get("USER") or f"uid {os.getuid()}"


def _rule_by_names(prefix: str, task: str, given: dict[str, object]) -> KeyRule:
    """Return the rule of a task whose key is made of just the given arguments."""
    kind = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in given])
    return KeyRule(prefix=prefix, task=task, signature=signature, by=tuple(given))
