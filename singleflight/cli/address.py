"""Where a lease is: a store's URL, the lease's name, and what of the URL nobody may see; pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from singleflight.errors import ConfigurationError
from singleflight.stores import check_readable

DATABASES = ("postgres", "mysql", "mariadb")
FILES = (".db", ".sqlite", ".sqlite3", ".sock", ".socket")
SECRET = ("pass", "pwd", "secret", "token")


@dataclass(frozen=True, slots=True)
class Address:
    """One lease of one store."""

    store: str
    name: str


def locate(target: str, store: str | None) -> Address:
    """Return which lease is meant by a URL with its name at the end, or by a name and a store's URL.

    Raises:
        ConfigurationError: if the name or the store is missing; the text shows no password.
    """
    if "://" not in target:
        if store is None:
            check_name(target)
            raise ConfigurationError(
                f"{target!r} is a name without a store: write a URL such as redis://host:6379/0/{target}, "
                "set SINGLEFLIGHT_URL, or give --url-file"
            )
        check_readable(store)
        return Address(store, target)
    check_readable(target)
    place, _, query = target.partition("?")
    place, _, name = place.rpartition("/")
    scheme, _, rest = place.partition("://")
    if not name or not rest or not _names_a_store(scheme.lower(), rest, name):
        example = hidden(target.partition("?")[0].rstrip("/"), secrets_in(target))
        raise ConfigurationError(f"the URL names no lease; append its name: {example}/NAME")
    return Address(f"{place}?{query}" if query else place, unquote(name))


def check_name(text: str) -> None:
    """Refuse a name that is a URL with a typing mistake, which may have a password.

    Raises:
        ConfigurationError: that shows nothing of it.
    """
    if "://" not in text and ":/" in text and "@" in text:
        check_readable(text)


def _names_a_store(scheme: str, rest: str, name: str) -> bool:
    """Tell a lease's name from what belongs to the store: a file, a database, its number, a service."""
    if scheme.startswith(("sqlite", "unix")) or scheme == "redis+socket":
        return bool(rest.strip("/")) and not name.endswith(FILES)
    if scheme.startswith(DATABASES):
        return "/" in rest
    if scheme in ("redis+sentinel", "rediss+sentinel"):
        return "/" in rest and not name.isdigit()
    if scheme == "sentinel":  # its servers are URLs of their own
        return not rest.endswith(":/") and ("/" in rest or not name.isdigit())
    return "/" in rest or not name.isdigit()


def secrets_in(url: str) -> list[str]:
    """Return what of a URL must never be shown, as it stands there and decoded."""
    # Whole, because a URL that cannot be read cannot be told apart either. A user's name alone is no secret.
    account = url.partition("://")[2].rpartition("@")[0]
    found = [account] if ":" in account else []
    with suppress(ValueError):
        parts = urlsplit(url)
        found += [parts.password or ""]
        found += [value for name, value in parse_qsl(parts.query) if any(word in name for word in SECRET)]
    return sorted({*found, *map(unquote, found)} - {""}, key=len, reverse=True)


def hidden(text: str, secrets: list[str]) -> str:
    """Return a text with every secret replaced by stars."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
