"""Reading URLs, durations and planned times on the command line; nothing shows a password."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import click
import pytest

from singleflight.cli.address import Address, hidden, locate, secrets_in
from singleflight.cli.operators.access import open_store_of
from singleflight.cli.parameters import duration, pause, time
from singleflight.errors import ConfigurationError
from singleflight.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("target", "store", "name"),
    [
        ("redis://redis/0/nightly", "redis://redis/0", "nightly"),
        ("redis://redis/nightly", "redis://redis", "nightly"),
        ("redis://u:p%40w@[::1]:6379/0/a%2Fb%20c", "redis://u:p%40w@[::1]:6379/0", "a/b c"),
        ("rediss://redis/0/nightly?ssl_cert_reqs=none", "rediss://redis/0?ssl_cert_reqs=none", "nightly"),
        ("unix:///run/redis.sock/nightly", "unix:///run/redis.sock", "nightly"),
        ("sqlite:////var/lib/leases.db/nightly", "sqlite:////var/lib/leases.db", "nightly"),
        ("sqlite:///me@host.db/nightly", "sqlite:///me@host.db", "nightly"),
        ("postgresql://db/app/nightly", "postgresql://db/app", "nightly"),
        ("dynamodb://leases/nightly?region=eu-west-1", "dynamodb://leases?region=eu-west-1", "nightly"),
    ],
)
def test_the_last_part_of_a_url_names_the_lease(target: str, store: str, name: str) -> None:
    """What is before it, and the query, is the store's URL."""
    assert locate(target, None) == Address(store, name)


def test_a_bare_name_belongs_to_the_store_that_is_set() -> None:
    """A name may have any character; only a URL is taken apart."""
    assert locate("a/b c", "redis://redis/0") == Address("redis://redis/0", "a/b c")


@pytest.mark.parametrize(
    "target",
    [
        "redis://redis/0",
        "redis://redis",
        "redis://redis/0/",
        "sqlite:///leases.db",
        "postgresql://db/app",
        "unix:///run/redis.sock",
        "redis+socket:///run/redis.sock",
        "redis+sentinel://sentinel:26379/leases",
        "redis+sentinel://sentinel:26379/leases/0",
        "sentinel://one;sentinel://two",
        "sqlite:////srv/leases.db",
        "nightly",
    ],
)
def test_a_url_without_a_name_is_refused(target: str) -> None:
    """A file, a database or its number is not taken for the name of a lease."""
    with pytest.raises(ConfigurationError):
        locate(target, None)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:sesame@redis/0",
        "redis://me:sesame@redis/0/nightly",
        "redis://me:ses%61me@redis/0",
        "redis://redis/0?password=sesame",
        "redis://:sesame@[redis/0",
        "redis://:open/sesame@redis/0",
    ],
)
def test_a_password_is_found_however_it_is_written(url: str) -> None:
    """Neither as it stands in the URL nor decoded does it remain in a text."""
    text = hidden(f"cannot reach {url}, password 'sesame' refused", secrets_in(url))

    assert "sesame" not in text.replace("'sesame'", "") or "open" in url
    assert url not in text


@pytest.mark.parametrize(
    "read", [open_store, partial(locate, store=None), lambda url: open_store_of([url], None)]
)
@pytest.mark.parametrize(
    "url",
    [
        "redis:/ann:hunter2@redis:6379/0/nightly",
        "redis://ann:hunter2#x@redis:6379/0/nightly",
        "redis://ann:hunter2?x@redis:6379/0/nightly",
        "redis://ann:hunter2/x@redis:6379/0/nightly",
    ],
)
def test_a_mistyped_url_is_refused_without_a_word_of_it(url: str, read: Callable[[str], object]) -> None:
    """Library and commands do not say where it went wrong by quoting a part of the password."""
    with pytest.raises(ConfigurationError, match="cannot be read; write it as redis://") as refusal:
        read(url)

    assert not re.search("ann:|hunter2|nightly", str(refusal.value))


def test_an_option_that_no_store_has_is_named_without_its_value() -> None:
    """It may be a password under another name, which is hidden in all that is said, too."""
    url = "redis://redis/0?pass=hunter2"
    with pytest.raises(ConfigurationError, match="pass is not an option") as refusal:
        open_store(url)

    assert "hunter2" not in str(refusal.value)
    assert secrets_in(url) == ["hunter2"]


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    """Nothing is hidden where nothing is secret; a user's name is not."""
    for url in ("redis://redis/0?db=1", "postgresql://u@postgres/app"):
        assert hidden(url, secrets_in(url)) == url


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("0.5", 0.5), (".5", 0.5), ("500ms", 0.5), ("5 m", 300), ("2h", 7200), ("1d", 86400)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    """A number alone is seconds."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1w", "nan", "inf", "1e3", "ten"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Signs, exponents and words are no durations."""
    with pytest.raises(click.BadParameter):
        duration(text)


@pytest.mark.parametrize("text", ["0", "49ms"])
def test_a_pause_that_would_keep_a_store_busy_is_refused(text: str) -> None:
    """`watch` must not be what the store is busy with."""
    with pytest.raises(click.BadParameter, match="write 50ms or longer"):
        pause(text)


def test_equal_instants_are_equal_text() -> None:
    """The zone in which a planned time is written does not matter."""
    spellings = ["2026-01-31T06:00Z", "2026-01-31T07:00:00+01:00", "20260131T060000Z", "@1769839200"]

    assert {time(text) for text in spellings} == {"2026-01-31T06:00:00+00:00"}


@pytest.mark.parametrize(
    "text", ["", "noon", "2026-01-31", "2026-01-31T06:00", "@", "@nan", "@1e99", "1769839200"]
)
def test_what_is_no_instant_is_refused(text: str) -> None:
    """Hosts would not agree on a time without a zone."""
    with pytest.raises(click.BadParameter):
        time(text)
