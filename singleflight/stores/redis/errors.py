"""What the errors of redis-py and of the server mean to whoever asked for a lease."""

from __future__ import annotations

import re

from singleflight.errors import ConfigurationError, NotInstalled, SingleflightError, StoreUnavailable
from singleflight.stores.base import RECORD_VERSION
from singleflight.stores.redis.rights import COMMANDS

try:
    from redis import exceptions
except ImportError as error:
    raise NotInstalled.of("redis", "redis") from error

driver = exceptions
"""The errors of redis-py, for those who need the package to be there."""

PASSING = {
    "READONLY": "the server is a replica",
    "LOADING": "the server is loading its data",
    "MASTERDOWN": "the replica has lost its primary",
    "BUSY": "the server is busy with a script",
    "TRYAGAIN": "the cluster is moving the key",
    "CLUSTERDOWN": "the cluster is down",
    "NOREPLICAS": "too few replicas are connected",
    "MISCONF": "the server cannot save its data to disk",
}
"""Codes that say: not this server, or not now. A new connection may reach one that can."""

# Redis 6.2 wraps errors within scripts: "Error running script (...): @user_script:7: -CODE text".
_CODE = re.compile(r"^(?:(?:ERR )?Error running script.*@user_script: ?\d+: -?)?([A-Z]{3,})\b", re.DOTALL)
_COMMAND = re.compile(r"'([a-z|]+)' command")
# A right that a script lacks comes without its code (7.0), or in other words (6.2).
_NO_RIGHT = re.compile(r"ACL failure in script|the user executing the script can't", re.IGNORECASE)
# What a script, or a request, meets that the server does not know; and what an operator may do to a script.
_NEVER = re.compile(
    r"user_script|running script|compiling script|in script|from script"
    r"|unknown (sub)?command|wrong number of arguments|syntax error|CROSSSLOT"
    r"|not supported|not allowed|protected mode",
    re.IGNORECASE,
)
_STOPPED = re.compile(r"script killed|function killed", re.IGNORECASE)

# redis-py turns these codes into classes and strips them from the text; not every version knows all.
_CLASSES = {
    "AskError": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


def code_of(error: BaseException) -> str:
    """Return the server's code, such as READONLY; empty if the error is not the server's."""
    if known := _CLASSES.get(type(error).__name__):
        return known
    found = _CODE.match(str(error))
    return found[1] if found else ""


def permanent(error: BaseException) -> bool:
    """Return whether trying again cannot help."""
    return bool(_fault(error, ""))


def translated(error: BaseException, address: str, key: str) -> SingleflightError:
    """Return the error to raise from a driver's one; the text names the server, never a password."""
    if fault := _fault(error, key):
        return ConfigurationError(f"store {address}: {fault}")
    return StoreUnavailable(f"store {address} {_trouble(error, key)}")


def cause_of(error: BaseException) -> BaseException | None:
    """Return what to name as the cause; what sentinels did not know has passwords in it, and no news."""
    return None if type(error).__name__ == "MasterNotFoundError" else error


def _fault(error: BaseException, key: str) -> str:
    """Return what is wrong for good, and what to do about it; empty if nothing is."""
    code, text = code_of(error), str(error)
    if isinstance(error, driver.AuthenticationError) or code in ("NOAUTH", "WRONGPASS"):
        return f"user or password refused ({text}); correct them in the store's URL"
    if isinstance(error, driver.AuthorizationError) or code == "NOPERM" or _NO_RIGHT.search(text):
        return _missing_right(text, key)
    if code == "RECORDVERSION":
        version = text.rpartition(" ")[2]
        return (
            f"{key} has record version {version}, this singleflight reads {RECORD_VERSION}; "
            "use one version everywhere, or another prefix"
        )
    if code == "WRONGTYPE":
        return f"{key} is no lease but something else's key; choose another prefix"
    if "certificate verify failed" in text.lower():
        return f"the server's certificate is not trusted ({text}); name its authority with ssl_ca_certs"
    return _wrong_server(code, text) or _never(error, code, text)


def _never(error: BaseException, code: str, text: str) -> str:
    """Return what is wrong if the server has answered that it cannot do this at all: no wait will help."""
    if not isinstance(error, driver.ResponseError) or code in PASSING or code in ("OOM", "NOSCRIPT"):
        return ""
    if _NEVER.search(text) and not _STOPPED.search(text):
        return (
            f"the server cannot run what leases need ({text}); needed are Redis 6.2 or newer, or Valkey, and "
            f"the commands {', '.join(COMMANDS)}, in scripts too"
        )
    return ""


def _wrong_server(code: str, text: str) -> str:
    if code in ("MOVED", "ASK"):
        return f"the server is a node of a cluster: write the store's URL with redis+cluster:// ({text})"
    if "DB index is out of range" in text or "Invalid Database" in text:  # the server's words, redis-py's
        return "the server has no such database; correct its number in the store's URL"
    if "cluster support disabled" in text:
        return "the server is no node of a cluster: write the store's URL with redis://"
    if "unknown command" in text.lower():
        return f"the server lacks a command ({text}); needed are {', '.join(COMMANDS)}"
    return ""


def _trouble(error: BaseException, key: str) -> str:
    """Return what is wrong for now."""
    code, text = code_of(error), str(error)
    if code == "OOM":
        return (
            f"is full and does not grant {key}, while renewals and releases go on: "
            "raise maxmemory, or free memory"
        )
    if code in PASSING:
        return f"cannot decide about {key} now: {PASSING[code]} ({text})"
    if type(error).__name__ == "MasterNotFoundError":
        text = _without_clients(text)
    return f"gave no answer about {key}: {text or type(error).__name__}"


def _without_clients(text: str) -> str:
    """Return what sentinels say without redis-py's description of each, which may have its password."""
    what, _, rest = text.partition(" : ")
    reasons = dict.fromkeys(re.findall(r"> - ([\w:]+(?:\(.*?\))?)(?=, <|$)", rest))
    return f"{what} ({'; '.join(reasons)})" if reasons else what


def _missing_right(text: str, key: str) -> str:
    found = _COMMAND.search(text)
    missing = f"the command {found[1].upper()}" if found else "a command or a key"
    also = (found[1].lower(),) if found and found[1].lower() not in COMMANDS else ()
    rights = " ".join(f"+{command}" for command in (*COMMANDS, *also))
    pattern = f" ~{key.partition(':')[0]}:*" if ":" in key else ""
    return f"the user may not use {missing} on {key} ({text}); grant it {rights}{pattern}"
