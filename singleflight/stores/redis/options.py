"""How to reach a Redis or Valkey server: a URL or a ready client's pool, as connection options of redis-py.

Only what says *where* the server is and *who* asks is taken over. How to talk to it (timeouts, retries,
decoding, protocol) is the store's own business, whatever the URL or the client say.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis import connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from singleflight.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Where the server is and who asks; options that start with ssl_ belong to it too.
REACH = {
    *("host", "port", "path", "db", "username", "password", "credential_provider", "client_name"),
    *("connection_class", "redis_connect_func"),
    *("socket_keepalive", "socket_keepalive_options", "socket_type"),
}
# How to talk to it: accepted in a URL, because brokers have them there, and not taken over.
OWN = {
    *("decode_responses", "encoding", "encoding_errors", "protocol"),
    *("socket_timeout", "socket_connect_timeout", "timeout", "health_check_interval", "max_connections"),
    *("retry", "retry_on_error", "retry_on_timeout"),
}
SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis+socket": "unix"}
# Celery's spelling in result backend URLs.
CERTIFICATES = {"CERT_NONE": "none", "CERT_OPTIONAL": "optional", "CERT_REQUIRED": "required"}


def options_from_url(url: str, **more: Any) -> dict[str, Any]:
    """Return the connection options that a URL names; ``more`` adds to them, and ``ssl`` asks for TLS.

    Raises:
        ConfigurationError: for an option that no connection has, or a URL that cannot be read.
    """
    parts = urlsplit(url)
    query = [("db" if name == "virtual_host" else name, value) for name, value in parse_qsl(parts.query)]
    scheme = SCHEMES.get(parts.scheme, parts.scheme)
    if scheme != "unix" and (database := parts.path.strip("/")) and not database.isdecimal():
        # redis-py would take it for database 0.
        raise ConfigurationError(
            f"{database!r} in the URL of the store is no number of a database; end it with /0, say"
        )
    parse: Any = connection.parse_url
    try:
        options = parse(f"{scheme}://{parts.netloc}{parts.path}?{urlencode(query)}") | more
    except ValueError as error:
        raise ConfigurationError(f"the {parts.scheme}:// URL of the store cannot be read: {error}") from error
    for name in sorted(set(options) - REACH - OWN - {"ssl"}):
        if not name.startswith("ssl_"):
            raise ConfigurationError(f"{name} is not an option of a Redis store; remove it from its URL")
    return reaching(options)


def options_from_pool(pool: Any) -> dict[str, Any]:
    """Return the connection options of a redis-py or valkey-py connection pool."""
    options = dict(pool.connection_kwargs)
    made_by = pool.connection_class
    if isinstance(made_by, type) and issubclass(
        made_by, connection.Connection | connection.UnixDomainSocketConnection
    ):
        options["connection_class"] = made_by
    elif "path" in options:
        options["connection_class"] = connection.UnixDomainSocketConnection
    elif any(base.__name__ == "SSLConnection" for base in getattr(made_by, "__mro__", ())):
        options["connection_class"] = connection.SSLConnection
    return reaching(options)


def reaching(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of some connection options is about where the server is and who asks."""
    # A bare object is redis-py's word for "not given", which it would not know again in another process.
    given = {name: value for name, value in options.items() if type(value) is not object}
    reach = {name: value for name, value in given.items() if name in REACH or name.startswith("ssl_")}
    if options.get("ssl"):
        reach["connection_class"] = connection.SSLConnection
    if provider := reach.get("credential_provider"):
        reach["credential_provider"] = _provider(provider)
        # As Celery does: who has one needs no other password.
        reach = {name: value for name, value in reach.items() if name not in ("username", "password")}
    certificates = reach.get("ssl_cert_reqs")
    if certificates in CERTIFICATES:
        reach["ssl_cert_reqs"] = CERTIFICATES[certificates]
    return reach


def _provider(named: Any) -> Any:
    """Return an object that tells user and password; its class may be named as text, as in Celery's URLs."""
    if not isinstance(named, str):
        return named
    try:
        return resolve_name(named)()
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigurationError(f"credential_provider={named!r} cannot be imported: {error}") from error


def address(options: Mapping[str, Any]) -> str:
    """Return where the server is, without user and password, for messages."""
    where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{where}/{options.get('db') or 0}"


def limited_to(options: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """Return the options of a connection that waits at most ``timeout`` seconds and never retries."""
    own: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "decode_responses": False,
        "health_check_interval": 0,
        "retry_on_timeout": False,
        "retry": Retry(NoBackoff(), 0),
    }
    if _KNOWS_RESP3:
        # RESP2 needs no HELLO, which a restricted user may not be allowed.
        own["protocol"] = 2
    elif "path" in options:
        del own["socket_connect_timeout"]
    return {**options, **own}


_KNOWS_RESP3 = int(redis.__version__.partition(".")[0]) >= 5  # noqa: PLR2004 - redis-py 5.0 brought it
